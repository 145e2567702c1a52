"""Updates are heard by whoever listens; listeners that come or go while torch walks through its hooks do no harm."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import torch
from torch.optim import optimizer as internals

import preloaded
from stayfinite import Guard, hooks


def _optimizer() -> torch.optim.SGD:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


def _registered() -> tuple[int, int]:
    return len(internals._global_optimizer_pre_hooks), len(internals._global_optimizer_post_hooks)


def test_listeners_are_told_in_order_before_and_after_and_leave_nothing() -> None:
    before, told = _registered(), []
    optimizer = _optimizer()
    with (
        hooks.listen_to_updates(lambda o: told.append("first"), lambda o: told.append("after")),
        hooks.listen_to_updates(before=lambda o: told.append(("second", o))),
    ):
        optimizer.step()
    optimizer.step()
    assert told == ["first", ("second", optimizer), "after"]
    assert _registered() == before


def test_listeners_may_come_and_go_in_the_middle_of_an_update() -> None:
    before, told, later = _registered(), [], hooks.Listening()
    optimizer = _optimizer()

    def begins(_: Any) -> None:
        told.append("begins")
        listening.stop()
        later.add(hooks.listen_to_updates(lambda o: told.append("later"), lambda o: told.append("ended")))

    others = internals.register_optimizer_step_pre_hook(lambda *_: told.append("another's"))
    try:
        listening = hooks.listen_to_updates(begins, lambda o: told.append("never: it left"))
        optimizer.step()
        assert sorted(told) == ["another's", "begins", "ended"]  # its first begin is that of the next one
        optimizer.step()
        assert sorted(told[3:]) == ["another's", "ended", "later"]
    finally:
        others.remove()
        later.stop()
    assert _registered() == before


def test_the_last_listener_leaves_in_the_middle_of_an_update() -> None:
    before = _registered()
    optimizer = _optimizer()
    listening = hooks.listen_to_updates(before=lambda o: listening.stop())
    others = [internals.register_optimizer_step_pre_hook(lambda *_: None) for _ in range(2)]
    optimizer.step()  # the walk goes on behind it
    for handle in others:
        handle.remove()
    hooks.listen_to_updates(before=lambda o: None).stop()  # who comes and goes takes along what was left
    assert _registered() == before


def test_a_forgotten_guard_is_collected_in_the_middle_of_a_step(tmp_path: Any) -> None:
    """A guard in a cycle goes when the collector runs: here inside of another optimizer's hooks."""

    def forget() -> None:
        model = torch.nn.Linear(2, 1)
        guard = Guard(
            model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path / "run", quiet=True
        )
        guard.itself = guard  # type: ignore[attr-defined]

    gc.collect()
    before = _registered()
    gc.disable()
    try:
        forget()
        others = [
            internals.register_optimizer_step_pre_hook(lambda *_: gc.collect() and None) for _ in range(2)
        ]
        try:
            _optimizer().step()  # raised "OrderedDict mutated during iteration" once
        finally:
            for handle in others:
                handle.remove()
    finally:
        gc.enable()
    hooks.listen_to_updates(before=lambda o: None, after=lambda o: None).stop()
    assert _registered() == before


def test_guards_come_and_go_in_one_thread_while_another_trains(tmp_path: Any) -> None:
    over, wrong = threading.Event(), []

    def train() -> None:
        optimizer = _optimizer()
        try:
            while not over.is_set():
                optimizer.step()
        except RuntimeError as error:
            wrong.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(300):
            first = hooks.listen_to_updates(lambda o: None, lambda o: None)
            second = hooks.listen_to_updates(lambda o: None)
            first.stop()
            second.stop()
    finally:
        over.set()
        thread.join()
    hooks.listen_to_updates(before=lambda o: None, after=lambda o: None).stop()
    assert wrong == []


def test_garbage_with_a_thread_local_in_it_does_not_hang_who_comes_to_listen() -> None:
    """Python up to 3.11 waits for itself if it is collected while one asks where all threads are."""
    script = """
import gc, threading
import torch.optim.optimizer
from stayfinite.hooks.updates import _updates_are_being_made

def garbage():
    local, cycle = threading.local(), []
    cycle.append((cycle, local))

over = threading.Event()
threads = [threading.Thread(target=over.wait) for _ in range(20)]
for thread in threads:
    thread.start()
for later in range(40):  # so many objects later there is a collection: some of them are the frames of these threads
    gc.collect()
    gc.disable()
    garbage()
    gc.set_threshold(gc.get_count()[0] + later)
    gc.enable()
    assert not _updates_are_being_made()
    assert gc.isenabled()
over.set()
"""
    preloaded.run([sys.executable, "-c", script], check=True, timeout=120)
