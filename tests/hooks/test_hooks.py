"""Listening leaves no trace: in any order, nested, from several threads, and after errors in the middle."""

from __future__ import annotations

import gc
import inspect
import itertools
import threading
import weakref
from typing import Any

import pytest
import torch

from stayfinite import hooks


def around(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


def test_every_hook_of_the_table_exists_and_is_put_back(alone: bool) -> None:
    if not alone:
        return
    events = sorted({hook.event for hook in hooks.HOOKS} | {"scheduler_made", "schedule", "scheduler_load"})
    before = {event: _attributes(event) for event in events}
    with hooks.Listening() as listening:
        for event in events:
            listening.add(hooks.listen(event, around))
        assert hooks.missing() == []
        for event in events:
            assert all(now is not was for now, was in zip(_attributes(event), before[event], strict=True)), (
                event
            )
    for event in events:
        assert all(now is was for now, was in zip(_attributes(event), before[event], strict=True)), event


def _attributes(event: str) -> list[Any]:
    from stayfinite.hooks import table

    return [getattr(owner, name) for owner, name in table._attributes(event)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_listeners_leave_in_any_order(order: tuple[int, ...]) -> None:
    before, heard = torch.autograd.backward, []
    listenings = [
        hooks.listen("backward", lambda original, *a, who=who, **k: (heard.append(who), original(*a, **k))[1])
        for who in range(3)
    ]
    here = set(range(3))
    for leaving in order:
        listenings[leaving].stop()
        listenings[leaving].stop()
        here.discard(leaving)
        heard.clear()
        torch.ones(2, requires_grad=True).sum().backward()
        assert sorted(heard) == sorted(here)
    assert torch.autograd.backward is before


def test_an_error_in_the_middle_of_listening_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from stayfinite.hooks import table

    before = _attributes("number_checked")
    real, count = table.HookPoint.listen, itertools.count()

    def breaks(point: Any, around: Any) -> Any:
        if next(count) == 3:
            raise RuntimeError("no more")
        return real(point, around)

    monkeypatch.setattr(table.HookPoint, "listen", breaks)
    with pytest.raises(RuntimeError, match="no more"):
        hooks.listen("number_checked", around)
    monkeypatch.undo()
    assert all(now is was for now, was in zip(_attributes("number_checked"), before, strict=True))


def test_who_wraps_a_heard_method_keeps_it_and_what_was_ours_passes_on() -> None:
    before, heard = torch.autograd.backward, []
    listening = hooks.listen("backward", lambda original, *a, **k: (heard.append(1), original(*a, **k))[1])
    ours = torch.autograd.backward

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    torch.autograd.backward = theirs
    try:
        listening.stop()
        assert torch.autograd.backward is theirs
        again = hooks.listen("backward", lambda original, *a, **k: (heard.append(2), original(*a, **k))[1])
        torch.ones(2, requires_grad=True).sum().backward()
        again.stop()
        assert heard == [2]
        assert torch.autograd.backward is theirs
    finally:
        torch.autograd.backward = before


def test_threads_come_and_go() -> None:
    before = torch.autograd.backward
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(100):
                seen: list[int] = []
                with hooks.listen(
                    "backward", lambda original, *a, seen=seen, **k: (seen.append(1), original(*a, **k))[1]
                ):
                    x = torch.ones(2, requires_grad=True)
                    x.sum().backward()
                    assert seen
        except BaseException as error:  # noqa: BLE001 - shown below
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert torch.autograd.backward is before


def test_an_optimizer_is_not_kept_alive_and_a_scheduler_made_meanwhile_works() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    steps: list[int] = []
    listening = hooks.listen_to(
        optimizer, "step", lambda original, *a, **k: (steps.append(1), original(*a, **k))[1]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        weight.grad = torch.ones(2)
        optimizer.step()
        scheduler.step()
    assert len(steps) == 2
    listening.stop()
    with hooks.listen_to(
        optimizer, "step", lambda original, *a, **k: (steps.append(2), original(*a, **k))[1]
    ):
        optimizer.step()
    optimizer.step()
    assert steps == [1, 1, 2]
    gone = weakref.ref(optimizer)
    del optimizer, scheduler, listening
    gc.collect()
    assert gone() is None


def test_an_optimizer_that_is_listened_to_goes_with_its_last_reference() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    plain = inspect.signature(optimizer.step)
    gone = weakref.ref(optimizer)
    listening = hooks.listen_to(optimizer, "step", around)
    assert inspect.signature(optimizer.step) == plain
    gc.disable()
    try:
        del optimizer
        assert gone() is None
    finally:
        gc.enable()
        listening.stop()
