"""What the policy says about a refused step is what happens, step by step and in a watched loop, replayed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.optim.swa_utils import AveragedModel

from stayfinite import Guard, Policy, RunStopped

NAN = float("nan")


class Run:
    """Ten batches, some of them bad, by `guard.step` or in an ordinary loop."""

    def __init__(
        self, folder: Path, loop: bool, bad: set[int], scheduler: Any = None, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(2, 1)
        self.optimizer = SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.scheduler = scheduler(self.optimizer) if scheduler else None
        self.average = AveragedModel(self.model)
        self.guard = Guard(
            self.model,
            self.optimizer,
            self.scheduler,
            ema=self.average,
            run_dir=folder,
            quiet=True,
            **options,
        )
        self.loop, self.bad = loop, bad
        self.batches = [torch.randn(4, 2) for _ in range(40)]
        self.draws: dict[int, list[float]] = {}

    def loss(self, index: int) -> Tensor:
        self.draws.setdefault(index, []).append(float(torch.rand(())))
        loss = self.model(self.batches[index]).square().mean()
        return loss * NAN if index in self.bad else loss

    def go(self, count: int = 10) -> None:
        if not self.loop:
            for index in range(count):
                self.guard.step(lambda i=index: self.loss(i), batch=self.batches[index])
            return
        for index in self.guard.watch(range(count)):
            self.optimizer.zero_grad()
            self.loss(index).backward()
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            self.average.update_parameters(self.model)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("locate", [False, True])
@pytest.mark.parametrize("choice", ["hold", "advance"])
def test_the_schedule_on_a_skip(tmp_path: Path, loop: bool, locate: bool, choice: Any) -> None:
    run = Run(
        tmp_path,
        loop,
        {4},
        lambda o: StepLR(o, 1, 0.5),
        policy=Policy(scheduler_on_skip=choice),
        locate=locate,
    )
    run.go()
    advanced = 9 if choice == "hold" else 10
    assert run.scheduler is not None and run.scheduler.last_epoch == advanced
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**advanced)
    assert int(run.average.n_averaged) == 9, "the average never counts a refused step"


@pytest.mark.parametrize("locate", [False, True])
@pytest.mark.parametrize("choice", ["restore", "advance"])
def test_random_numbers_on_a_skip(tmp_path: Path, locate: bool, choice: Any) -> None:
    run = Run(tmp_path, False, {4}, policy=Policy(rng_on_skip=choice), locate=locate)
    run.go(6)
    assert len(run.draws[4]) == (2 if locate else 1), "followed once more, with the same random numbers"
    assert len(set(run.draws[4])) == 1
    assert (run.draws[5][0] == run.draws[4][0]) == (choice == "restore")


@pytest.mark.parametrize("loop", [False, True])
def test_the_whole_ladder_on_a_real_run(tmp_path: Path, loop: bool) -> None:
    run = Run(tmp_path, loop, set(range(23, 32)), lambda o: LambdaLR(o, lambda s: 0.99**s), snapshot_every=10)
    rates: list[float] = []
    run.optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
    run.go(40)
    counts = run.guard.counters
    assert (counts.applied, counts.skipped, counts.rollbacks, counts.lowerings) == (31, 9, 1, 2)
    assert counts.rolled_back == 3 and run.guard.success_rate == pytest.approx(28 / 40)
    before, after = rates[20], rates[-8]
    assert after == pytest.approx(before / 4), "after the rollback the schedule of step 20, lowered twice"
    assert run.scheduler is not None and run.scheduler.last_epoch == 20 + 8
    assert run.guard.bad_state() == []


@pytest.mark.parametrize("loop", [False, True])
def test_a_run_that_fails_for_ever_stops_with_a_clean_checkpoint(tmp_path: Path, loop: bool) -> None:
    run = Run(tmp_path / "run", loop, set(range(5, 40)))
    with pytest.raises(
        RunStopped, match=r"10 failures in a row at step 14.*Applied 5, skipped 10"
    ) as stopped:
        run.go(40)
    assert stopped.value.checkpoint is not None
    other = Run(tmp_path / "other", False, set())
    other.guard.restore(stopped.value.checkpoint)
    assert torch.equal(other.model.weight, run.model.weight) and other.guard.bad_state() == []
    assert other.guard.step(lambda: other.loss(0)).applied


@pytest.mark.parametrize("loop", [False, True])
def test_stop_at_the_first(tmp_path: Path, loop: bool) -> None:
    run = Run(tmp_path, loop, {3}, policy="stop")
    with pytest.raises(RunStopped, match="the first failure at step 3"):
        run.go()
    assert run.guard.counters.applied == 3 and "step" not in vars(run.optimizer)


@pytest.mark.parametrize("leave_by", ["break", "close"])
def test_a_loop_for_each_batch_is_stopped_too(tmp_path: Path, leave_by: str) -> None:
    """A loop that is left cannot be told that the run has ended: whoever trains on in it is."""
    run = Run(tmp_path, True, set(range(5, 40)))
    with pytest.raises(RunStopped, match="10 failures in a row at step 14"):
        for index in range(40):
            bodies = iter(run.guard.watch([index]))
            for number in bodies:
                run.optimizer.zero_grad()
                run.loss(number).backward()
                run.optimizer.step()
                if leave_by == "break":
                    break
                bodies.close()
    assert run.guard.counters.applied == 5 and run.guard.counters.skipped == 10
    assert run.guard.bad_state() == []
    other = Run(tmp_path / "other", True, set())
    other.go()
    assert other.guard.counters.applied == 10, "a run that has ended stops no other"


def test_too_few_applied_updates_stop_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, False, {i for i in range(40) if i % 3}, policy=Policy(min_applied_window=20))
    with pytest.raises(RunStopped, match="less than 50% of the last 20 steps"):
        run.go(40)


@pytest.mark.parametrize(
    ("ending", "lost"),
    [({17, 18, 19}, 7), ({22, 23, 24}, 2)],
    ids=["before it is over", "when it is over"],
)
def test_a_copy_that_is_due_in_the_middle_of_a_trouble_is_taken_when_it_is_over(
    tmp_path: Path, ending: set[int], lost: int
) -> None:
    """Due before step 16, between failures: the run goes back to that of step 8, or to the one before step 20."""
    policy = Policy(lower_lr_after=None, rollback_after=3)
    run = Run(tmp_path, False, {13, 15} | ending, snapshot_every=8, policy=policy, locate=False)
    run.go(max(ending) + 1)
    assert run.guard.counters.rollbacks == 1
    assert run.guard.counters.rolled_back == lost
