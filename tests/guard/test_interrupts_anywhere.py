"""Ctrl-C at any line of ours: the step was made, or it never began. Never half of it, and nothing bad stays."""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
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
from stayfinite.hooks import listen_to_updates
from stayfinite.replay.tracer import is_unfollowed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each test is a forked process")
AT, POINTS = 2, 8
BACKWARD = torch.autograd.backward
DATA = [
    (torch.randn(8, 4, generator=torch.Generator().manual_seed(n)), torch.full((8, 1), n / 9))
    for n in range(4)
]


@pytest.fixture(autouse=True)
def in_a_process_of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupt leaves behind in torch or python stays there."""
    test = request.node.obj

    def forked(**given: Any) -> None:
        child = os.fork()
        if not child:
            code = 1
            try:
                test(**given)
                code = 0
            except BaseException:  # noqa: BLE001 - told by its exit code
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    monkeypatch.setattr(request.node, "obj", forked)


class Interrupter:
    """Sends SIGINT at the n-th line of stayfinite that is run while it is entered."""

    def __init__(self, at: int) -> None:
        self.at, self.lines = at, 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        ours = "/stayfinite/" in frame.f_code.co_filename
        # Python handles signals after calls and at the end of loops; between two plain assignments it never does.
        return self._line if ours and frame.f_code.co_name != "unfollowed" else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                signal.raise_signal(signal.SIGINT)
        return self._line


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
    """The lines of the step, and all state before and after it."""
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
    assert torch.autograd.backward is BACKWARD, f"line {at}"  # nothing of ours is left in torch
    assert not is_unfollowed(), f"line {at}"
    told: list[Any] = []
    with listen_to_updates(told.append):
        training.optimizer.step(lambda: torch.zeros(()))
    assert told == [training.optimizer], f"line {at}"  # updates are still heard, once
    return interrupter.lines, before, after


@pytest.mark.parametrize("bad", [False, True], ids=["good", "bad"])
@pytest.mark.parametrize("optimizer", ["Adam", "LBFGS"])
@pytest.mark.parametrize("how", ["step", "watched"])
def test_a_step_is_made_or_never_began(tmp_path: Path, how: str, optimizer: str, bad: bool) -> None:
    lines, before, after = run(tmp_path / "whole", how, optimizer, bad, 0)
    assert bool(differing(before, after)) is not bad
    for at in sorted(random.Random(f"{how} {optimizer} {bad}").sample(range(1, lines), POINTS)):
        _, begun, left = run(tmp_path / str(at), how, optimizer, bad, at)
        assert not differing(begun, before)
        assert not differing(left, before) or not differing(left, after), f"line {at} of {lines}"


def lines_of(at: int, do: Callable[[], Any]) -> int:
    """Do it, with a signal at one of its lines; gives how many lines it took."""
    interrupter = Interrupter(at)
    try:
        with interrupter():
            do()
    except KeyboardInterrupt:
        assert at
    assert not is_unfollowed(), f"line {at}"
    return interrupter.lines


def test_there_is_a_copy_to_go_back_to_wherever_taking_the_next_is_interrupted(tmp_path: Path) -> None:
    def run(at: int) -> int:
        training = Training(tmp_path / str(at), "Adam", bad=False)
        for number in range(AT):
            training.step(number)
        lines = lines_of(at, training.guard._maintenance.before_step)
        with torch.no_grad():
            training.model[0].weight[0, 0] = torch.nan
        training.guard.close()  # looks at all state, and puts it back
        assert all(tensor.isfinite().all() for tensor in training.model.state_dict().values()), f"line {at}"
        return lines

    for at in random.Random(4).sample(range(1, run(0)), 2 * POINTS):
        run(at)


def test_a_checkpoint_is_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    def run(at: int) -> tuple[int, dict[str, Any], dict[str, Any], dict[str, Any], int]:
        training = Training(tmp_path / str(at), "Adam", bad=False)
        training.step(0)
        saved, path = training.bits(), training.guard.save(tmp_path / str(at) / "first.pt")
        training.step(1)
        later = training.bits()
        lines = lines_of(at, lambda: training.guard.restore(path))
        left, step = training.bits(), training.guard.step_count
        training.step(2)
        training.guard.close()
        return lines, saved, later, left, step

    for at in random.Random(5).sample(range(1, run(0)[0]), 2 * POINTS):
        _, saved, later, left, step = run(at)
        assert (not differing(left, saved) and step == 1) or (not differing(left, later) and step == 2), at


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
