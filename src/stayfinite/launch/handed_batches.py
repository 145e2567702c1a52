"""HandedBatches: the batches of a framework's loader as its loop gets them, however far it reads ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class HandedBatches:
    """Iterates over what a framework's loader gives; every batch passes `around(next, self)`."""

    def __init__(self, batches: Iterator[Any], around: Callable[[Callable[[Any], Any], Any], Any]) -> None:
        self._batches, self._around = batches, around

    def __iter__(self) -> HandedBatches:
        return self

    def __next__(self) -> Any:
        return self._around(_next, self)


def _next(handed: HandedBatches) -> Any:
    return next(handed._batches)
