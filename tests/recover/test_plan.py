"""Staged plans: a training that fails at its full rate at once and does not when it starts small."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Criteria, Guard, Plan, Policy, RunStopped, Stage

FULL_RATE = 0.1


def events(guard: Guard, name: str) -> list[dict[str, Any]]:
    lines = (guard.run_dir / "run.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line.get("event") == name]


class Training:
    """A deep linear network that starts with large weights: the curvature there allows only a small rate.

    Where it has come down to later, the full rate is stable.
    """

    def __init__(self, folder: Path, plan: Plan | None, *, scheduled: bool = False, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(4)))
        with torch.no_grad():
            for layer in self.model:
                layer.weight.copy_(torch.eye(6) * 2.0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), FULL_RATE)
        self.scheduler = (
            torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 400) if scheduled else None
        )
        self.guard = Guard(
            self.model,
            self.optimizer,
            self.scheduler,
            run_dir=folder,
            quiet=True,
            plan=plan,
            **{"policy": Policy(spikes="ignore", lower_lr_after=None, rollback_after=None)} | options,
        )
        self.data = torch.Generator().manual_seed(1)

    def loss(self, x: Tensor) -> Tensor:
        return (self.model(x) - x).pow(2).mean()

    def step(self) -> Any:
        x = torch.randn(32, 6, generator=self.data)
        return self.guard.step(lambda: self.loss(x), batch=x)

    def held_out(self) -> float:
        with torch.no_grad():
            return float(self.loss(torch.randn(256, 6, generator=torch.Generator().manual_seed(2))))

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


def two_stages(**criteria: Any) -> Plan:
    return Plan([Stage("small", rate=0.05, until=Criteria(40, **criteria)), Stage("full")])


def test_the_full_rate_at_once_fails_and_the_staged_run_does_not(tmp_path: Path) -> None:
    at_once = Training(tmp_path / "at_once", None)
    with pytest.raises(RunStopped):
        for _ in range(120):
            at_once.step()

    staged = Training(tmp_path / "staged", two_stages(success_rate=0.95, loss_falls=True))
    before = staged.held_out()
    stages = []
    for _ in range(120):
        assert staged.step().applied
        stages.append(staged.guard.stage)
    assert stages[38:42] == ["small", "small", "full", "full"]
    assert staged.rate == pytest.approx(FULL_RATE)
    assert staged.held_out() < 1e-3 * before
    said = [(event["stage"], event["rate"]) for event in events(staged.guard, "stage")]
    assert said == [("small", 0.05), ("small", 0.05), ("full", 1.0)]


@pytest.mark.parametrize("plan", [None, Plan([Stage("whole", until=Criteria(3, loss_falls=False))])])
def test_a_neutral_plan_changes_no_bit(tmp_path: Path, plan: Plan | None) -> None:
    runs = [
        Training(tmp_path / name, each, scheduled=True, clip_norm=0.1)
        for name, each in (("a", None), ("b", plan))
    ]
    for run in runs:
        for _ in range(12):
            run.step()
    assert runs[0].rate == runs[1].rate
    assert all(torch.equal(a, b) for a, b in zip(*(run.model.parameters() for run in runs), strict=True))


def test_a_stage_whose_criteria_do_not_hold_stays_and_says_why_once_in_a_while(tmp_path: Path) -> None:
    run = Training(tmp_path, two_stages(max_grad_norm=1e-9))
    for _ in range(90):
        run.step()
    assert run.guard.stage == "small" and run.rate == pytest.approx(0.05 * FULL_RATE)
    said = [event["what"] for event in events(run.guard, "stage")][1:]
    assert len(said) == 2, "at 40 updates and at 80, not at each of them"
    assert all("goes on: a gradient norm of" in what and "is above 1e-09" in what for what in said)


def test_refused_steps_count_against_the_success_rate(tmp_path: Path) -> None:
    plan = Plan([Stage("small", until=Criteria(10, success_rate=0.9)), Stage("full")])
    run = Training(tmp_path, plan)
    with torch.no_grad():
        for layer in run.model:
            layer.weight.mul_(0.5)
    bad = {3, 5}
    stages = []
    for index in range(20):
        x = torch.randn(32, 6, generator=run.data) * (math.nan if index in bad else 1.0)
        run.guard.step(lambda x=x: run.loss(x))
        stages.append(run.guard.stage)
    assert run.guard.counters.skipped == 2
    # 10 are applied after 12 steps, but one refusal too many lies within the last 10 steps until step 14 is through
    assert stages.index("full") == 14, stages
    assert "90.0% are asked for" in events(run.guard, "stage")[1]["what"]


def test_schedules_keep_their_shape_and_peaks(tmp_path: Path) -> None:
    run = Training(tmp_path, two_stages(), scheduled=True)
    rates = []
    for _ in range(60):
        rates.append((run.guard.step_count, run.rate))
        run.step()
    shape = [0.5 * (1 + math.cos(math.pi * step / 400)) * FULL_RATE for step in range(61)]
    for step, rate in rates[1:41]:
        assert rate == pytest.approx(0.05 * shape[step]), step
    for step, rate in rates[41:]:
        assert rate == pytest.approx(shape[step]), step
    assert run.scheduler is not None and run.scheduler.base_lrs == pytest.approx([FULL_RATE])


def test_a_stage_clips_by_its_own_norm_and_calls_what_it_was_given(tmp_path: Path) -> None:
    entered: list[str] = []
    plan = Plan(
        [
            Stage("tight", clip_norm=1e-4, until=Criteria(2), on_enter=lambda: entered.append("tight")),
            Stage("as configured", on_enter=lambda: entered.append("as configured")),
        ]
    )
    run = Training(tmp_path, plan, clip_norm=1e-2)
    moved = []
    for _ in range(4):
        before = copy.deepcopy(run.model)
        run.step()
        change = [a - b for a, b in zip(run.model.parameters(), before.parameters(), strict=True)]
        moved.append(float(torch.cat([part.detach().flatten() for part in change]).norm()) / FULL_RATE)
    assert moved == pytest.approx([1e-4, 1e-4, 1e-2, 1e-2], rel=0.02)
    assert entered == ["tight", "as configured"]


def test_in_a_watched_loop_the_stage_clips_what_the_body_has_clipped_already(tmp_path: Path) -> None:
    run = Training(tmp_path, Plan([Stage("tight", clip_norm=1e-3)]))
    before = copy.deepcopy(run.model)
    for x in run.guard.watch([torch.randn(32, 6, generator=run.data)]):
        run.optimizer.zero_grad()
        run.loss(x).backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 1e-2)
        run.optimizer.step()
    change = [a - b for a, b in zip(run.model.parameters(), before.parameters(), strict=True)]
    assert float(torch.cat([p.detach().flatten() for p in change]).norm()) / FULL_RATE == pytest.approx(
        1e-3, rel=0.02
    )


@pytest.mark.parametrize("resume_lr", ["checkpoint", "config"])
@pytest.mark.parametrize("saved_at", [20, 50])
def test_a_checkpoint_brings_its_stage_back(tmp_path: Path, resume_lr: str, saved_at: int) -> None:
    whole = Training(tmp_path / "whole", two_stages(loss_falls=True), scheduled=True)
    for _ in range(saved_at):
        whole.step()
    path = whole.guard.save(tmp_path / "x.pt")

    resumed = Training(tmp_path / "resumed", two_stages(loss_falls=True), scheduled=True)
    resumed.guard.restore(path, resume_lr=resume_lr)
    assert resumed.guard.stage == whole.guard.stage and resumed.rate == pytest.approx(whole.rate)
    assert "differ" not in events(resumed.guard, "restore")[0]["what"]
    resumed.data.set_state(whole.data.get_state())
    for _ in range(30):
        whole.step()
        resumed.step()
        assert resumed.guard.stage == whole.guard.stage
    assert resumed.rate == pytest.approx(whole.rate) and resumed.guard.stage == "full"
    exact = resume_lr == "checkpoint"
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b) if exact else torch.allclose(a, b)


def test_a_checkpoint_without_a_plan_begins_with_the_first_stage(tmp_path: Path) -> None:
    plain = Training(tmp_path / "plain", None)
    path = plain.guard.save(tmp_path / "x.pt")
    for resume_lr in ("checkpoint", "config"):
        staged = Training(tmp_path / resume_lr, two_stages())
        staged.guard.restore(path, resume_lr=resume_lr)
        assert staged.guard.stage == "small" and staged.rate == pytest.approx(0.05 * FULL_RATE)


def test_a_rollback_goes_back_to_the_stage_of_its_copy(tmp_path: Path) -> None:
    entered: list[str] = []
    plan = Plan(
        [
            Stage("small", rate=0.05, until=Criteria(6), on_enter=lambda: entered.append("small")),
            Stage("full", on_enter=lambda: entered.append("full")),
        ]
    )
    policy = Policy(spikes="ignore", lower_lr_after=None, rollback_after=2, max_lowerings=0)
    run = Training(tmp_path, plan, snapshot_every=4, policy=policy)
    for _ in range(7):
        run.step()
    assert run.guard.stage == "full"
    for _ in range(2):
        result = run.guard.step(lambda: run.loss(torch.full((2, 6), math.nan)))
    assert result.action == "rollback"
    assert run.guard.stage == "small" and run.rate == pytest.approx(0.05 * FULL_RATE)
    assert entered == ["small", "full", "small"]
    for _ in range(7):
        run.step()
    assert run.guard.stage == "full" and run.rate == pytest.approx(FULL_RATE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plan([]), "at least one stage"),
        (lambda: Plan([Stage("a"), Stage("b")]), "'a' never ends"),
        (lambda: Plan([Stage("a", until=Criteria(1)), Stage("a")]), "same name"),
        (lambda: Stage("a", rate=0.0), r"rate=0.0"),
        (lambda: Stage("a", clip_norm=-1.0), r"clip_norm=-1.0"),
        (lambda: Criteria(0), "at least 1"),
        (lambda: Criteria(4, loss_falls=True), "at least 8"),
        (lambda: Criteria(4, success_rate=1.5), "success_rate=1.5"),
        (lambda: Criteria(4, max_grad_norm=0.0), "max_grad_norm=0.0"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
