"""An optimizer that steps by itself after `scaler.unscale_`: a step whose scaled gradients overflow is not refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.watched import incidents_of

TRAINING = """
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    opt = torch.optim.SGD(net.parameters(), 0.05)
    sc = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=4)
    for _ in range(20):
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(torch.ones(32, 4))
        loss = (out.float() - 3.0).abs().mean() + (out.float() * 0).sum()
        opt.zero_grad()
        sc.scale(loss).backward()
        sc.unscale_(opt)
        STEP
        sc.update()
"""
WRONG = "opt.step()"
RIGHT = ("sc.step(opt)", "if all(torch.isfinite(p.grad).all() for p in net.parameters()): opt.step()")


def test_the_missing_call_comes_first_and_the_overflow_after_it(tmp_path: Path) -> None:
    findings = incidents_of(TRAINING.replace("STEP", WRONG), tmp_path)[0].findings
    assert [finding.code for finding in findings[:2]] == ["STA034", "NUM021"]
    assert "scaler.step(optimizer)" in findings[0].fix and "lower" in findings[1].fix


@pytest.mark.parametrize("step", RIGHT)
def test_scalers_that_are_asked_and_checks_of_one_s_own_are_no_failure(tmp_path: Path, step: str) -> None:
    assert not incidents_of(TRAINING.replace("STEP", step), tmp_path)
