"""StoredArray: an array of samples that is read in blocks of rows, whatever its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Blocks = Callable[[int, int | None], Iterator[tuple[int, "torch.Tensor"]]]
"""From a first row to a last one (None: to the end): (number of the first row, rows x values). Blocks are reused."""


BLOCK = 1 << 20
"""Bytes of a block of rows: it stays in the processor's second cache, between being read and being looked at. With
4 MB the same work took a tenth more time on a processor with 1.25 MB of it for each core."""


class UnreadableData(Exception):
    """A file that cannot be read as data; the text says what, where and what to do."""


@dataclass(slots=True)
class StoredArray:
    """`rows` is None where it is known only after reading; then the array is read by one thread."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Blocks
    rows: int | None
    columns: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True)
class StoredData:
    """What one file holds."""

    path: str
    format: str
    nbytes: int
    arrays: list[StoredArray] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(file, what is wrong with it)."""
