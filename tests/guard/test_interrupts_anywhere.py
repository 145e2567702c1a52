"""Ctrl-C anywhere in our code: the step was made, or it never began. Never half of it, and nothing bad stays."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from trials.bits import bits, differing

from stayfinite import Guard
from stayfinite.guarding.loop import WatchedLoop
from stayfinite.hooks import Listening, listen_to_updates
from stayfinite.replay.tracer import is_unfollowed

# Python itself swallows an interrupt that comes while it closes a generator which any() has left early, or while it
# runs a finalizer (of what an earlier test left), and says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(generator|finalize):pytest.PytestUnraisableExceptionWarning"
)

AT, TRIED = 2, 8
BACKWARD = torch.autograd.backward
DATA = [
    (torch.randn(8, 4, generator=torch.Generator().manual_seed(n)), torch.full((8, 1), n / 9))
    for n in range(4)
]


class Interrupter:
    """Sends SIGINT at the n-th point below code of ours at which Python handles signals: where a function is entered,
    and where a call of one that is written in C is over."""

    def __init__(self, at: int) -> None:
        self.at, self.points = at, 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        sys.setprofile(self._reached)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _reached(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_return") and _is_below_ours(frame):
            self.points += 1
            if self.points == self.at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)


def _is_below_ours(frame: FrameType | None) -> bool:
    """Called by us, through whatever else; what the training itself calls is its own business."""
    while frame is not None and frame.f_code.co_filename != __file__:
        if "/stayfinite/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


class Training:
    def __init__(self, folder: Path, optimizer: str, *, bad: bool) -> None:
        torch.manual_seed(0)
        self.bad, self.model = (
            bad,
            nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1)),
        )
        given = {"lr": 0.1, "max_iter": 2} if optimizer == "LBFGS" else {"lr": 0.01}
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), **given)
        self.scheduler = LambdaLR(self.optimizer, lambda n: 1 / (n + 1))
        self.guard = Guard(
            self.model, self.optimizer, self.scheduler, run_dir=folder, quiet=True, locate=False, policy="skip",
            check_every=2, snapshot_every=2, scheduler_interval="step",
        )  # fmt: skip

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = DATA[number]
        return (x * torch.nan if self.bad and number == AT else x), y

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(x), y)

    def step(self, number: int) -> None:
        self.guard.step(self.loss, *self.batch(number))

    def watched(self, number: int) -> None:
        def closure(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            return loss

        for batch in self.guard.watch([self.batch(number)]):
            self.optimizer.step(partial(closure, *batch))

    def bits(self) -> dict[str, Any]:
        return bits(generators=False, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)


def run(
    folder: Path, how: str, optimizer: str, bad: bool, at: int
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The points of the step, and all state before and after it."""
    training = Training(folder, optimizer, bad=bad)
    one = getattr(training, how)
    for number in range(AT):
        one(number)
    before, interrupter = training.bits(), Interrupter(at)
    try:
        with interrupter():
            one(AT)
    except KeyboardInterrupt:
        assert at
    after = training.bits()
    one(AT + 1)  # it goes on
    training.guard.close()
    assert torch.autograd.backward is BACKWARD, f"point {at}"  # nothing of ours is left in torch
    assert not is_unfollowed() and torch.is_grad_enabled(), f"point {at}"
    told: list[Any] = []
    with listen_to_updates(told.append):
        training.optimizer.step(lambda: torch.zeros(()))
    assert told == [training.optimizer], f"point {at}"  # updates are still heard, once
    return interrupter.points, before, after


@pytest.mark.parametrize("bad", [False, True], ids=["good", "bad"])
@pytest.mark.parametrize("optimizer", ["Adam", "LBFGS"])
@pytest.mark.parametrize("how", ["step", "watched"])
def test_a_step_is_made_or_never_began(tmp_path: Path, how: str, optimizer: str, bad: bool) -> None:
    points, before, after = run(tmp_path / "whole", how, optimizer, bad, 0)
    assert bool(differing(before, after)) is not bad
    near = min(points, 9000)  # a bad step has half a million more, in what explains it
    for at in sorted(random.Random(f"{how} {optimizer} {bad}").sample(range(1, near), TRIED)):
        _, begun, left = run(tmp_path / str(at), how, optimizer, bad, at)
        assert not differing(begun, before)
        assert not differing(left, before) or not differing(left, after), f"point {at} of {points}"


def points_of(at: int, do: Callable[[], Any]) -> int:
    """Do it, with a signal at one of its points; gives how many there are."""
    interrupter = Interrupter(at)
    try:
        with interrupter():
            do()
    except KeyboardInterrupt:
        assert at
    assert not is_unfollowed(), f"point {at}"
    return interrupter.points


def test_there_is_a_copy_to_go_back_to_wherever_taking_the_next_is_interrupted(tmp_path: Path) -> None:
    def run(at: int) -> int:
        training = Training(tmp_path / str(at), "Adam", bad=False)
        for number in range(AT):
            training.step(number)
        points = points_of(at, training.guard._maintenance.before_step)
        with torch.no_grad():
            training.model[0].weight[0, 0] = torch.nan
        training.guard.close()  # looks at all state, and puts it back
        assert all(tensor.isfinite().all() for tensor in training.model.state_dict().values()), f"point {at}"
        return points

    for at in random.Random(4).sample(range(1, run(0)), 2 * TRIED):
        run(at)


def test_a_checkpoint_is_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    def run(at: int) -> tuple[int, dict[str, Any], dict[str, Any], dict[str, Any], int]:
        training = Training(tmp_path / str(at), "Adam", bad=False)
        training.step(0)
        saved, path = training.bits(), training.guard.save(tmp_path / str(at) / "first.pt")
        training.step(1)
        later = training.bits()
        points = points_of(at, lambda: training.guard.restore(path))
        left, step = training.bits(), training.guard.step_count
        training.step(2)
        training.guard.close()
        return points, saved, later, left, step

    for at in random.Random(5).sample(range(1, run(0)[0]), 2 * TRIED):
        _, saved, later, left, step = run(at)
        assert (not differing(left, saved) and step == 1) or (not differing(left, later) and step == 2), at


@contextmanager
def interrupted_in(
    function: Callable[..., Any], at: str = "call", caller: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Sends SIGINT as this function is entered ("call"), or when a call of C inside of it is over ("c_return")."""

    def reached(frame: FrameType, event: str, arg: Any) -> None:
        called = caller is None or (frame.f_back is not None and frame.f_back.f_code is caller.__code__)
        if event == at and frame.f_code is function.__code__ and called:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(reached)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_loop_that_is_interrupted_as_it_ends_leaves_nothing_in_torch(tmp_path: Path) -> None:
    training = Training(tmp_path, "Adam", bad=False)
    training.watched(0)
    with pytest.raises(KeyboardInterrupt), interrupted_in(Listening.stop, caller=WatchedLoop.batches):
        training.watched(1)
    assert torch.autograd.backward is BACKWARD
    training.guard.close()


def test_gradients_are_on_again_where_an_interrupt_came_as_a_no_grad_ended(tmp_path: Path) -> None:
    training = Training(tmp_path, "Adam", bad=False)

    def loss() -> torch.Tensor:
        torch._C._set_grad_enabled(False)  # what is left when the exit of `no_grad` does not run
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.guard.step(loss)
    assert torch.is_grad_enabled()
    training.step(0)
    training.guard.close()


def test_every_signal_has_its_handler_back_whatever_comes_meanwhile() -> None:
    from stayfinite.hooks.interrupts import _HeldSignals, interrupts_wait

    def of_the_user(number: int, frame: FrameType | None) -> None: ...

    before = signal.signal(signal.SIGTERM, of_the_user)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            interrupted_in(_HeldSignals._put_back, "c_return"),
            interrupts_wait(),
        ):
            pass
        assert signal.getsignal(signal.SIGTERM) is of_the_user
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_interrupts_pass_in_the_users_code_and_inside_of_another_wait() -> None:
    from stayfinite.hooks.interrupts import interrupts_pass, interrupts_wait

    heard = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        heard.append("waits")
        with interrupts_wait():
            heard.append("inside")
        heard.append("still waits")
        with interrupts_pass():
            heard.append("never")
    assert heard == ["waits", "inside", "still waits"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
