"""scaled_rates: every update at its own learning rate times a factor, while entered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stayfinite.hooks import Listening, listen_to_updates

_KEPT = "_stayfinite_rate"


def scaled_rates(factor: Callable[[int], float]) -> Listening:
    """The factor is one of how many updates this optimizer has made; between updates the rate is what it was, for
    schedules to work on."""
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

    return listen_to_updates(scale, put_back)
