"""around_updates: something done before and after every update of every optimizer, while entered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stayfinite.hooks import UpdateListener, listen_to_updates

_KEPT = "_stayfinite_rate"


@contextmanager
def around_updates(
    before: UpdateListener | None = None, after: UpdateListener | None = None
) -> Iterator[None]:
    """`before(optimizer)` and `after(optimizer)` around each `optimizer.step()`."""
    with listen_to_updates(before, after):
        yield


@contextmanager
def scaled_rates(factor: Callable[[int], float], *, least: float = 0.0) -> Iterator[None]:
    """Every update at its own learning rate times a factor of how many this optimizer has made; between updates the
    rate is what it was, for schedules to work on. Groups that begin with a rate below `least` are left as they are."""
    made: dict[int, int] = {}
    scaled: dict[tuple[int, int], bool] = {}  # by optimizer and group

    def scale(optimizer: Any) -> None:
        number = made.get(id(optimizer), 0)
        made[id(optimizer)] = number + 1
        for index, group in enumerate(optimizer.param_groups):
            group[_KEPT] = group["lr"]
            begins = max(group["lr"], group.get("initial_lr", 0.0), group.get("max_lr", 0.0))
            if begins and scaled.setdefault((id(optimizer), index), bool(begins >= least)):
                group["lr"] = group["lr"] * factor(number)

    def put_back(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            if _KEPT in group:
                group["lr"] = group.pop(_KEPT)

    with listen_to_updates(scale, put_back):
        yield
