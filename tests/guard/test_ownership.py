"""One object owns a step: whichever way it is left, nothing of it stays, and the next step is a new one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from guard.small_training import NAN, Training, assert_same, batches, spoiled
from stayfinite import Guard

LEFT_BY: list[type[BaseException]] = [KeyError, KeyboardInterrupt]
DATA = batches(6)


def steps(training: Training, guard: Guard, data: list[Tensor]) -> None:
    for x in data:
        assert guard.step(lambda x=x: training.loss(x)).applied


def assert_nothing_left(training: Training, guard: Guard, before: Training, folder: Path) -> None:
    """The step that was left is gone without a trace: no update, no gradient, no moved buffer, no open window."""
    assert_same(training.bits(), before, generators=False)
    assert not training.has_gradients, "gradients of the step that was left"
    assert guard.save(folder / "between.pt").is_file()
    assert training.optimizer.step is training.own_step, "a patch that stayed"


class LeavesMidway(torch.optim.Optimizer):
    """A user's own gradient descent, that is interrupted when some of its parameters have moved."""

    leave: Callable[[], None] | None = None

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                if index == 2 and self.leave is not None:
                    leave, self.leave = self.leave, None
                    leave()
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"])
                    self.state[parameter]["steps"] = self.state[parameter].get("steps", 0) + 1


def raiser(error: type[BaseException]) -> Callable[[], None]:
    def leave() -> None:
        raise error("left")

    return leave


# -- guard.step


@pytest.mark.parametrize("error", LEFT_BY)
@pytest.mark.parametrize("place", ["before the forward pass", "after it", "in the backward pass"])
def test_a_step_function_that_is_left(tmp_path: Path, error: type[BaseException], place: str) -> None:
    training, leave = Training(), raiser(error)
    guard = training.guard(tmp_path)
    steps(training, guard, DATA[:3])

    def fails() -> Tensor:
        if place == "before the forward pass":
            leave()
        loss = training.loss(DATA[0])
        if place == "after it":
            leave()
        hidden = loss * 1.0
        hidden.register_hook(lambda _: leave())
        return hidden + loss

    with pytest.raises(error):
        guard.step(fails)
    assert_nothing_left(training, guard, Training().train(DATA[:3]), tmp_path)
    steps(training, guard, DATA[3:])
    assert_same(training.bits(), Training().train(DATA), generators=False)
    assert (guard.counters.steps, guard.counters.applied) == (6, 6)


@pytest.mark.parametrize("error", LEFT_BY)
def test_the_second_of_two_micro_batches_is_left(tmp_path: Path, error: type[BaseException]) -> None:
    """The update it was part of is given up: the first micro-batch's gradients and buffers go, too."""

    def reference(data: list[Tensor]) -> Training:
        plain = Training()
        for one, two in zip(data[::2], data[1::2], strict=True):
            plain.optimizer.zero_grad()
            (plain.loss(one) / 2).backward()
            (plain.loss(two) / 2).backward()
            plain.optimizer.step()
            plain.advance()
        return plain

    training = Training()
    guard = training.guard(tmp_path, accumulate=2)
    for x in DATA[:2]:
        guard.step(lambda x=x: training.loss(x))
    guard.step(lambda: training.loss(DATA[5]))

    def fails() -> Tensor:
        training.loss(DATA[4])
        raise error("left")

    with pytest.raises(error):
        guard.step(fails)
    assert_nothing_left(training, guard, reference(DATA[:2]), tmp_path)
    results = [guard.step(lambda x=x: training.loss(x)).applied for x in DATA[2:]]
    assert results == [None, True, None, True]
    assert_same(training.bits(), reference(DATA), generators=False)


@pytest.mark.parametrize("way", ["step", "watch"])
@pytest.mark.parametrize("error", LEFT_BY)
def test_an_update_that_is_left_midway(tmp_path: Path, way: str, error: type[BaseException]) -> None:
    """Some parameters have moved, others have not: they go back."""
    training = Training(LeavesMidway)
    guard = training.guard(tmp_path)
    steps(training, guard, DATA[:3])
    training.optimizer.leave = raiser(error)
    with pytest.raises(error):
        if way == "step":
            guard.step(lambda: training.loss(DATA[5]))
        else:
            for x in guard.watch(DATA[5:]):
                training.body(x)
    assert_nothing_left(training, guard, Training(LeavesMidway).train(DATA[:3]), tmp_path)
    steps(training, guard, DATA[3:])
    assert_same(training.bits(), Training(LeavesMidway).train(DATA), generators=False)
    assert guard.counters.applied == 6


@pytest.mark.parametrize("way", ["step", "watch"])
def test_a_real_ctrl_c_in_the_middle_of_an_update(tmp_path: Path, way: str) -> None:
    """The update is whole or it is not there; it is never half."""
    training = Training(LeavesMidway)
    guard = training.guard(tmp_path)
    steps(training, guard, DATA[:3])
    training.optimizer.leave = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        if way == "step":
            guard.step(lambda: training.loss(DATA[3]))
        else:
            for x in guard.watch(DATA[3:4]):
                training.body(x)
    made = guard.counters.applied - 3
    assert made in (0, 1)
    expected = Training(LeavesMidway).train(DATA[:3])
    if made:
        expected.optimizer.zero_grad()
        expected.loss(DATA[3]).backward()
        expected.optimizer.step()
    skip = {"scheduler", "average"} if made else set()  # the interrupt may come before they are advanced
    for name, tensor in training.bits(generators=False).items():
        if name.split(".")[0] not in skip and isinstance(tensor, Tensor):
            assert torch.equal(tensor, expected.bits()[name]), name
    assert guard.bad_state() == [] and guard.save(tmp_path / "a.pt").is_file()


@pytest.mark.parametrize("error", LEFT_BY)
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_that_is_left_in_an_evaluation(
    tmp_path: Path, error: type[BaseException], search: str | None
) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, 0.1, max_iter=4, line_search_fn=search)

    def plain(data: list[Tensor]) -> Training:
        training = Training(make)
        for x in data:

            def closure(x: Tensor = x) -> Tensor:
                training.optimizer.zero_grad()
                loss = training.loss(x)
                loss.backward()
                return loss

            training.optimizer.step(closure)
            training.advance()
        return training

    training = Training(make)
    guard = training.guard(tmp_path)
    steps(training, guard, DATA[:3])
    calls = 0

    def fails() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:  # the optimizer has moved the parameters by now
            raise error("left")
        return training.loss(DATA[5])

    with pytest.raises(error):
        guard.step(fails)
    assert_nothing_left(training, guard, plain(DATA[:3]), tmp_path)
    steps(training, guard, DATA[3:])
    assert_same(training.bits(), plain(DATA), generators=False)


# -- guard.watch


PLACES = ["before the forward pass", "after the forward pass", "after the backward pass"]


def half_a_body(training: Training, x: Tensor, place: str) -> None:
    training.optimizer.zero_grad()
    if place != "before the forward pass":
        loss = training.loss(x)
        if place == "after the backward pass":
            loss.backward()


@contextmanager
def left(way: str) -> Iterator[None]:
    if way in ("break", "close"):
        yield
    else:
        with pytest.raises({"error": KeyError, "interrupt": KeyboardInterrupt}[way]):
            yield


def leave_in_body(training: Training, guard: Guard, x: Tensor, way: str, place: str) -> None:
    """Begin a body with this batch and leave it, and the loop, half-way."""
    if way == "close":
        loop = iter(guard.watch([x, x]))
        half_a_body(training, next(loop), place)
        loop.close()  # type: ignore[attr-defined]
        return
    with left(way):
        for batch in guard.watch([x, x]):
            half_a_body(training, batch, place)
            if way == "break":
                break
            raise KeyError("left") if way == "error" else KeyboardInterrupt


@pytest.mark.parametrize("way", ["error", "interrupt", "break", "close"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bad", [False, True])
def test_a_body_that_is_left(tmp_path: Path, way: str, place: str, bad: bool) -> None:
    training = Training()
    guard = training.guard(tmp_path)
    for x in guard.watch(DATA[:3]):
        training.body(x)
    leave_in_body(training, guard, spoiled(DATA[5]) if bad else DATA[5], way, place)
    assert_nothing_left(training, guard, Training().train(DATA[:3]), tmp_path)
    for x in guard.watch(DATA[3:]):
        training.body(x)
    assert_same(training.bits(), Training().train(DATA), generators=False)
    assert (guard.counters.steps, guard.counters.applied) == (6, 6)


@pytest.mark.parametrize("way", ["error", "break"])
def test_after_a_body_that_was_left_step_begins_anew(tmp_path: Path, way: str) -> None:
    """The other way to train finds no micro-batch that waits for its update."""
    training = Training()
    guard = training.guard(tmp_path)
    leave_in_body(training, guard, spoiled(DATA[5]), way, "after the backward pass")
    steps(training, guard, DATA)
    assert_same(training.bits(), Training().train(DATA), generators=False)


@pytest.mark.parametrize("bad", [False, True])
def test_continue_after_the_backward_pass(tmp_path: Path, bad: bool) -> None:
    """`continue` leaves a loss behind that no update is made of: the next update is not judged by it."""

    def loop(training: Training, data: Any, *, see_bad: bool) -> None:
        for number, x in enumerate(data):
            training.optimizer.zero_grad()
            if number == 3 and not see_bad:
                continue
            loss = training.model[4](training.model[2](training.model[0](x)))  # no buffers
            loss = loss.square().mean() * (NAN if number == 3 and bad else 1.0)
            loss.backward()
            if number == 3:
                continue
            training.optimizer.step()
            training.advance()

    training = Training()
    guard = training.guard(tmp_path)
    loop(training, guard.watch(DATA), see_bad=True)
    found, plain = training.bits(), Training()
    loop(plain, DATA, see_bad=not bad)
    assert_same(found, plain)
    assert (guard.counters.applied, guard.counters.skipped) == (5, 0)


def test_continue_before_the_backward_pass(tmp_path: Path) -> None:
    """A healthy body that trains nothing keeps what it did, as it would without a guard."""

    def loop(training: Training, data: Any) -> None:
        for number, x in enumerate(data):
            training.optimizer.zero_grad()
            loss = training.loss(x)
            if number == 3:
                continue
            loss.backward()
            training.optimizer.step()
            training.advance()

    training = Training(dropout=0.2)
    guard = training.guard(tmp_path)
    loop(training, guard.watch(DATA))
    found, plain = training.bits(), Training(dropout=0.2)
    loop(plain, DATA)
    assert_same(found, plain)


def test_continue_with_a_forward_pass_that_is_not_finite(tmp_path: Path) -> None:
    """`if not isfinite(loss): continue`: the batch leaves nothing but the random numbers that the body drew."""
    training = Training()
    guard = training.guard(tmp_path)
    for x in guard.watch([*DATA[:3], spoiled(DATA[3]), *DATA[3:]]):
        training.optimizer.zero_grad()
        loss = training.loss(x)
        if not torch.isfinite(loss):
            continue
        loss.backward()
        training.optimizer.step()
        training.advance()
    assert_same(training.bits(), Training().train(DATA))


def test_break_after_the_update_keeps_it(tmp_path: Path) -> None:
    training = Training(dropout=0.2)
    guard = training.guard(tmp_path)
    for number, x in enumerate(guard.watch(DATA)):
        training.body(x)
        if number == 3:
            break
    assert_same(training.bits(), Training(dropout=0.2).train(DATA[:4]))


def test_gradients_left_over_at_the_end_of_an_epoch_stay(tmp_path: Path) -> None:
    """Seven batches, an update every two: the last one's gradients go into the next epoch, as without a guard."""
    data = batches(7)

    def epochs(training: Training, watch: Callable[[list[Tensor]], Any]) -> Training:
        number = 0
        for _ in range(2):
            for x in watch(data):
                (training.loss(x) / 2).backward()
                number += 1
                if number % 2 == 0:
                    training.optimizer.step()
                    training.optimizer.zero_grad()
                    training.advance()
        return training

    training = Training()
    guard = training.guard(tmp_path)
    epochs(training, guard.watch)
    assert_same(training.bits(), epochs(Training(), lambda data: data))
    assert guard.counters.applied == 7
