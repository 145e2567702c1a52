"""STA044: a checkpoint whose second moments are 0; one that is whole is silent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rules.watched import incidents_of
from stayfinite.observers.lost_squares import lost_squares

_RESUME = """
    import copy
    net = nn.Linear(4, 2)
    old = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(5):
        old.zero_grad(); net(torch.randn(8, 4)).square().mean().backward(); old.step()
    state = copy.deepcopy(old.state_dict())
    for moments in state["state"].values():
        SPOILT
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    opt.load_state_dict(state)  #!
    for _ in range(4):
        opt.zero_grad(); net(torch.randn(8, 4)).square().mean().backward(); opt.step()
"""


@pytest.mark.parametrize(
    ("spoilt", "codes"), [("moments['exp_avg_sq'].zero_()", ["STA044"]), ("pass", [])], ids=["lost", "whole"]
)
def test_second_moments_of_zero(spoilt: str, codes: list[str], tmp_path: Path) -> None:
    incidents = incidents_of(_RESUME.replace("SPOILT", spoilt), tmp_path)
    found = [finding for incident in incidents for finding in incident.findings]
    assert [finding.code for finding in found] == codes
    for finding in found:
        assert finding.cause == "CHECKPOINT_CORRUPT" and finding.line == 13


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "RMSprop"])
def test_a_negative_second_moment_is_the_cause_of_the_root_that_is_taken_of_it(
    optimizer: str, tmp_path: Path
) -> None:
    key = "square_avg" if optimizer == "RMSprop" else "exp_avg_sq"
    script = _RESUME.replace("SPOILT", f"moments['{key}'].view(-1)[0] = -5e-7").replace("Adam", optimizer)
    found = [finding for incident in incidents_of(script, tmp_path) for finding in incident.findings]
    assert found and (found[0].code, found[0].line) == ("STA045", 13), found
    assert "second moment of -5e-07" in found[0].message


def test_an_optimizer_may_keep_numbers_of_its_own_in_its_state() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    optimizer.state["calls"] = 7
    assert lost_squares(optimizer) == 0.0
