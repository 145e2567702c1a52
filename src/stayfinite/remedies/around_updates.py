"""around_updates: something done before and after every update of every optimizer, while entered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def _nothing(optimizer: Any) -> None:
    pass


@contextmanager
def around_updates(
    before: Callable[[Any], object] = _nothing, after: Callable[[Any], object] = _nothing
) -> Iterator[None]:
    """`before(optimizer)` and `after(optimizer)` around each `optimizer.step()`."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        before(optimizer)

    def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
        after(optimizer)

    first, last = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)
    try:
        yield
    finally:
        first.remove()
        last.remove()


_KEPT = "_stayfinite_rate"


@contextmanager
def scaled_rates(factor: Callable[[int], float]) -> Iterator[None]:
    """Every update at its own learning rate times a factor of how many this optimizer has made; between updates the
    rate is what it was, for schedules to work on."""
    made: dict[int, int] = {}

    def scale(optimizer: Any) -> None:
        number = made.get(id(optimizer), 0)
        made[id(optimizer)] = number + 1
        for group in optimizer.param_groups:
            group[_KEPT] = group["lr"]
            group["lr"] = group["lr"] * factor(number)

    def put_back(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            if _KEPT in group:
                group["lr"] = group.pop(_KEPT)

    with around_updates(scale, put_back):
        yield
