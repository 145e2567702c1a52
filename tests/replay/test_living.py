"""Objects found in memory by their type: complete, and harmless to other threads."""

import threading
import time

import torch

from stayfinite.replay.living import living, living_models


class Plain(torch.nn.Module):
    pass


class Derived(Plain):
    pass


def test_models_are_found_by_what_they_are_made_from() -> None:
    inner, outer, loose = Derived(), torch.nn.Sequential(), Plain()
    outer.append(inner)
    found = living((Plain,))
    assert {id(inner), id(loose)} <= {id(one) for one in found}
    roots = {id(one) for one in living_models()}
    assert id(outer) in roots and id(loose) in roots and id(inner) not in roots


def test_an_object_that_lies_about_its_class_is_not_asked() -> None:
    class Proxy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise AssertionError("asked")

    proxy = Proxy()
    assert all(one is not proxy for one in living((torch.nn.Module,)))


def test_a_thread_that_is_making_tuples_is_not_disturbed() -> None:
    """With a list of all objects in python's hands this raised SystemError within a second; so did finalizers that
    ran while it was there."""
    ended, trouble = threading.Event(), []

    def make() -> None:
        try:
            while not ended.is_set():
                tuple(number for number in range(200))
        except SystemError as error:
            trouble.append(error)

    alive = 0

    class Litter:
        def __del__(self) -> None:
            nonlocal alive
            sum(range(50))
            alive -= 1

    def litter() -> None:
        nonlocal alive
        while not ended.is_set():
            if alive > 20_000:
                time.sleep(0.001)  # a loop outruns finalizers: unbounded, this took all memory of a machine
                continue
            one = Litter()
            alive += 1
            one.itself = one  # type: ignore[attr-defined]

    threads = [*(threading.Thread(target=make) for _ in range(4)), threading.Thread(target=litter)]
    for thread in threads:
        thread.start()
    for _ in range(12):
        living((torch.nn.Module,))
    ended.set()
    for thread in threads:
        thread.join()
    assert trouble == []
