"""MiddleWords: eight bytes from the middle of each row, taken while its block is in the cache.

Enough to tell nearly all rows apart, and to see that they are not of one value; what they leave open is read again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stayfinite.data.repeated import by_whole_rows, repeated
from stayfinite.data.rows import RowState, Watch, find_constant
from stayfinite.readers.checkpoint.contents import ITEM_SIZE
from stayfinite.readers.checkpoint.half_range import available
from stayfinite.readers.checkpoint.measure import comparable
from stayfinite.readers.data import StoredArray

if TYPE_CHECKING:
    import torch

_FEW_AGAIN, _AT_ONCE = 64, 1 << 15
_VALUES_OF_FOUR_BYTES = {1: 0x7F7F7F7F, 2: 0x7FFF7FFF, 4: 0x7FFFFFFF}
"""The bits of the values in half a word, by their size. Without signs, so that 0 equals -0."""


class MiddleWords:
    """Of the rows of one array that can be read again. Threads fill it, each the rows that it reads."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array
        self._words = _room_for(array.rows or 0)

    def taker(self) -> Callable[[torch.Tensor, int], None]:
        """For one thread: a function that keeps the words of a block, whose first row has the number it is told."""
        words: Any = self._words.numpy() if available() else self._words
        known: torch.Tensor | None = None
        column: Any = None

        def take(block: torch.Tensor, first: int) -> None:
            nonlocal known, column
            if block is not known:  # most blocks are the same memory, filled again
                known, column = block, _middle(block)
            words[first : first + block.shape[0]] = column

        return take

    def find_constant(self, state: RowState, begin: int, end: int, watch: Watch) -> None:
        """Rows of one value among those from `begin` to `end`: most words say no, the others are read again."""
        for at in range(begin, end, _AT_ONCE):
            self._find_constant(state, at, min(at + _AT_ONCE, end), watch)

    def _find_constant(self, state: RowState, begin: int, end: int, watch: Watch) -> None:
        words = self._words[begin:end]
        unequal = words >> 32  # in a row of one value both halves of the word are the same
        unequal ^= words
        unequal &= _VALUES_OF_FOUR_BYTES[ITEM_SIZE[self._array.dtype]]
        if unequal.all():
            return
        rows = (unequal == 0).nonzero().flatten().tolist()
        again = [(row, row + 1) for row in rows] if len(rows) <= _FEW_AGAIN else [(0, end - begin)]
        for first, last in again:
            for at, block in self._array.blocks(begin + first, begin + last):
                find_constant(state, comparable(block), at, watch)

    def repeated(self, jobs: int) -> list[tuple[int, int]]:
        """Pairs (row, earlier row) that share the sum of their bits; the caller compares the rows themselves."""
        return by_whole_rows(self._array, repeated(self._words, jobs))


def _room_for(rows: int) -> torch.Tensor:
    """Memory from numpy where it is there, which asks for large pages: first use of it costs a fifth."""
    import torch

    if not available():
        return torch.empty(rows, dtype=torch.int64)
    return torch.from_numpy(importlib.import_module("numpy").empty(rows, "int64"))


def _middle(block: torch.Tensor) -> Any:
    import torch

    words = block.view(torch.int64)
    column = words[:, words.shape[1] // 2]
    return column.numpy() if available() else column
