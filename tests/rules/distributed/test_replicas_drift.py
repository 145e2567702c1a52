"""DST001 on scripts that simulate ranks with an optimizer each: one gradient for all, decisions of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.watched import incidents_of
from stayfinite.findings import Finding

RANKS = """
import copy
base = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
nets = [copy.deepcopy(base) for _ in range(3)]
opts = [torch.optim.{optimizer} for net in nets]
plans = [torch.optim.lr_scheduler.StepLR(opt, 4, 0.5) for opt in opts]
for step in range(12):
    for net, opt in zip(nets, opts):
        x = torch.randn(8, 4)
        opt.zero_grad(); (net(x) - x[:, :1]).pow(2).mean().backward()
    for ps in zip(*[net.parameters() for net in nets]):
        mean = sum(p.grad for p in ps) / 3
        for p in ps: {give}
    for rank, opt in enumerate(opts):
        {step}
"""
GIVES = ["p.grad = mean.clone()", "p.grad.copy_(mean)", "p.grad.data = mean + 0"]
OPTIMIZERS = ["SGD(net.parameters(), 0.1)", "AdamW(net.parameters(), 1e-2)"]


def findings(source: str, folder: Path) -> list[Finding]:
    found = [finding for incident in incidents_of(source, folder) for finding in incident.findings]
    return [finding for finding in found if finding.code == "DST001"]


@pytest.mark.parametrize(
    ("optimizer", "give"),
    [
        *((OPTIMIZERS[0], give) for give in GIVES),
        (OPTIMIZERS[1], GIVES[0]),
        *(pytest.param(OPTIMIZERS[1], give, marks=pytest.mark.long) for give in GIVES[1:]),
    ],
)
def test_a_rank_that_skips(give: str, optimizer: str, tmp_path: Path) -> None:
    step = "if not (rank == 2 and step in (0, 5)): opt.step()"
    found = findings(RANKS.format(give=give, optimizer=optimizer, step=step), tmp_path)
    assert len(found) == 1
    script = (tmp_path / "script.py").read_text().splitlines()
    assert "opt.step()" in script[(found[0].line or 0) - 1]
    skipped = [replica["skipped"] for replica in found[0].evidence["replicas"]]
    assert max(skipped) == 2 or found[0].evidence["replicas"][1]["drift"]


def test_a_rank_whose_rate_is_another(tmp_path: Path) -> None:
    step = "opt.step(); rank != 1 and plans[rank].step()"
    source = RANKS.format(give=GIVES[0], optimizer=OPTIMIZERS[0], step=step)
    found = findings(source, tmp_path)
    assert len(found) == 1
    assert "differ" in found[0].message


@pytest.mark.parametrize(
    "optimizer", [OPTIMIZERS[0], pytest.param(OPTIMIZERS[1], marks=pytest.mark.long)], ids=["sgd", "adamw"]
)
@pytest.mark.parametrize("step", ["opt.step()", "step == 5 or opt.step()"], ids=["all step", "all skip"])
def test_ranks_that_decide_together(step: str, optimizer: str, tmp_path: Path) -> None:
    assert findings(RANKS.format(give=GIVES[0], optimizer=optimizer, step=step), tmp_path) == []


def test_ranks_without_a_common_gradient_are_experiments(tmp_path: Path) -> None:
    source = RANKS.format(give="pass", optimizer=OPTIMIZERS[1], step="if rank or step != 5: opt.step()")
    assert findings(source, tmp_path) == []
