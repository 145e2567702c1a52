"""A tracer follows one thread at a time, the one that it was told to follow last."""

from __future__ import annotations

import threading

import torch

from stayfinite.replay import Tracer


def _in_a_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def _bad() -> torch.Tensor:
    return torch.zeros(2).log()


def test_another_thread_is_not_followed_before_it_says_so() -> None:
    with Tracer() as tracer:
        _in_a_thread(_bad)
        assert not tracer.follower.bad_seen
        _bad()
        assert tracer.follower.bad_seen


def test_the_thread_that_says_so_is_followed_and_no_other() -> None:
    seen = []

    def work() -> None:
        tracer.follow_this_thread()
        tracer.follow_this_thread()
        loss = _bad().sum()
        seen.append(tracer.failure(loss, "loss"))

    with Tracer() as tracer:
        _in_a_thread(work)
        before = len(tracer.follower.journal)
        _bad()
        assert len(tracer.follower.journal) == before
    assert seen[0] is not None and seen[0].birth is not None
    assert seen[0].birth.op == "log"


def test_it_can_be_taken_back_and_nothing_stays_when_it_ends() -> None:
    with Tracer() as tracer:
        _in_a_thread(tracer.follow_this_thread)
        tracer.follow_this_thread()
        _bad()
        assert tracer.follower.bad_seen
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0
