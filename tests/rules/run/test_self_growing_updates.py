"""RUN024: momentum, weight decay and clipping norms with which weights grow whatever the gradients are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rules.watched import incidents_of
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import OptimizerFacts, RunRecord, StepRecord

_TRAINING = """
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.{optimizer}
    x = torch.randn(32, 4)
    y = x.sum(1, keepdim=True)
    for i in range({steps}):
        opt.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        {clip}
        opt.step()
"""


def codes(directory: Path, optimizer: str, steps: int, clip: str = "pass") -> list[str]:
    source = _TRAINING.format(optimizer=optimizer, steps=steps, clip=clip)
    return [finding.code for incident in incidents_of(source, directory) for finding in incident.findings]


@pytest.mark.parametrize(
    "optimizer, steps",
    [
        ("AdamW(net.parameters(), lr=1e-3, weight_decay=1e4)", 60),
        ("SGD(net.parameters(), lr=1e-2, weight_decay=500.0)", 120),
        ("SGD(net.parameters(), lr=1e-2, momentum=1.5)", 250),
    ],
)
def test_the_setting_is_named_and_no_rate(tmp_path: Path, optimizer: str, steps: int) -> None:
    told = codes(tmp_path, optimizer, steps)
    assert told[0] == "RUN024" and "RUN010" not in told


@pytest.mark.parametrize(
    "optimizer",
    [
        "AdamW(net.parameters(), lr=1e-3, weight_decay=100.0)",  # a tenth of the weights at every step
        "Adam(net.parameters(), lr=1e-3, weight_decay=1e4)",  # divided by its own size
        "SGD(net.parameters(), lr=1e-2, momentum=0.99)",
    ],
)
def test_other_settings_are_nothing(tmp_path: Path, optimizer: str) -> None:
    assert "RUN024" not in codes(tmp_path, optimizer, 40)


def test_a_negative_norm_is_named_in_a_run_that_stays_finite(tmp_path: Path) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(net.parameters(), -1.0)"
    assert codes(tmp_path, "SGD(net.parameters(), lr=1e-3)", 20, clip)[0] == "RUN024"
    assert not codes(tmp_path, "SGD(net.parameters(), lr=1e-3)", 20, clip.replace("-1.0", "1.0"))


def test_the_rate_is_that_of_the_updates_and_not_what_a_schedule_has_made_of_it_since() -> None:
    optimizer = OptimizerFacts("AdamW", 3e-4, None, None, ("float32",), (), 3, shrinking=(3e-4, 1e4))
    records = tuple(StepRecord(n, 2.0, lr=rate) for n, rate in enumerate((1e-3, 5e-4, 3e-4)))
    run = RunRecord(history=records, optimizers=(optimizer,))
    step = FailedStep(3, "backward", "gradient", run, norm_overflowed=True)
    told = next(finding for finding in explain(step) if finding.code == "RUN024")
    assert "up to 0.001" in told.message and "by -9 before" in told.message
    healthy = replace(optimizer, shrinking=(3e-4, 0.1))
    assert not any(
        f.code == "RUN024" for f in explain(replace(step, run=replace(run, optimizers=(healthy,))))
    )


def test_an_update_that_its_decay_made_so_large_says_nothing_of_the_rate() -> None:
    """The report named both, and called a rate that was one in a thousand of the weights proved."""
    optimizer = OptimizerFacts("SGD", 0.01, None, None, ("float32",), (), 4, shrinking=(0.01, 500.0))
    records = tuple(StepRecord(n, 2.0 * 40**n, lr=0.01, update_ratio=5.0 if n < 3 else 1e4) for n in range(4))
    run = RunRecord(history=records, optimizers=(optimizer,))
    step = FailedStep(4, "backward", "gradient", run, norm_overflowed=True)
    told = [finding.code for finding in explain(step)]
    assert told[0] == "RUN024" and "RUN010" not in told
