"""Which rows repeat an earlier one: equal rows share an integer, and rows that share one are compared.

Where rows can be read again, one word or sixteen from the middle of each tell most of them apart; only rows that agree
there are read whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from stayfinite.data.shared_keys import beside, rows_of_shared_keys
from stayfinite.readers.checkpoint.contents import ITEM_SIZE
from stayfinite.readers.checkpoint.half_range import available
from stayfinite.readers.data import StoredArray

if TYPE_CHECKING:
    import torch

ONE_WORD, _SOME = 1, 16
_WIDE = 64
_LOOKED_AT_FIRST = 512
_ALIKE = {ONE_WORD: 0.0, _SOME: 0.02}
"""The share of rows that may agree in so many words, among those that are looked at first."""
_READ_ONE_BY_ONE = 20_000
_MANY = 1 << 16


def fingerprints(block: torch.Tensor, part: int = 0) -> torch.Tensor:
    """One integer a row that equal rows share, and others do not: their bits, each word weighed by its place.

    With `part`, of so many words in the middle of the row only.
    """
    import torch

    rows = block.contiguous()
    if rows.shape[1] * rows.element_size() % 8 == 0:
        words = (
            rows.view(torch.int64)
            if rows.element_size() <= 8
            else torch.view_as_real(rows).flatten(1).view(torch.int64)
        )
    else:
        words = rows.view(torch.uint8).to(torch.int64)
    if part:
        middle = words[:, words.shape[1] // 2 :]
        return middle[:, 0].clone() if part == ONE_WORD else middle[:, :part].sum(dim=1)
    # The upper half onto the lower: two signs at the top of two words would cancel each other out.
    return ((words ^ (words >> 32)) * _weights(words.shape[1])).sum(dim=1)


@lru_cache(maxsize=8)
def _weights(count: int) -> torch.Tensor:
    """An odd number for each place, without a pattern: with 1, 2, 3, ... many short rows have the same sum."""
    import torch

    places = torch.arange(1, count + 1, dtype=torch.int64) * -0x61C8864680B583EB
    places = (places ^ (places >> 30)) * -0x40A7B892E31B1A47
    return (places ^ (places >> 27)) * -0x6B2FB644ECCEEE15 | 1


def words_that_suffice(array: StoredArray) -> int:
    """How many words of each row tell a few hundred of them, at two places, apart; 0: only whole rows will do.

    Whole rows are needed too where rows cannot be read again, and where they are short.
    """
    import torch

    size = ITEM_SIZE.get(array.dtype, 8)
    nbytes = prod(array.shape[1:]) * size
    if array.rows is None or nbytes % 8 or nbytes <= 8 * _WIDE:
        return 0
    for part, share in _ALIKE.items():
        if part == ONE_WORD and size > 4:
            continue  # a word is one value: it says nothing of whether a row is constant
        alike = 0
        for begin in (0, array.rows // 2):
            keys = [fingerprints(block, part) for _, block in array.blocks(begin, begin + _LOOKED_AT_FIRST)]
            alike = max(alike, len(repeated(torch.cat(keys))) if keys else 0)
        if alike <= share * _LOOKED_AT_FIRST:
            return part
    return 0


def repeated(keys: torch.Tensor, jobs: int = 1) -> list[tuple[int, int]]:
    """Pairs (row, earlier row) with the same integer; the caller compares the rows themselves."""
    import torch

    # Few rows are left to be sorted by all eight bytes with their places.
    if keys.numel() > _MANY and available():
        rows = rows_of_shared_keys(keys, jobs)
    else:
        ordered, order = torch.sort(_digests(keys), stable=True)
        rows = beside(ordered, order)
    if not rows.numel():
        return []
    rows = rows.sort().values.unique_consecutive()  # type: ignore[no-untyped-call]
    ordered, order = torch.sort(keys[rows], stable=True)
    same = ordered[1:] == ordered[:-1]
    later, earlier = rows[order[1:][same]], rows[order[:-1][same]]
    return sorted(zip(later.tolist(), earlier.tolist(), strict=True))


def _digests(keys: torch.Tensor) -> torch.Tensor:
    import torch

    return (keys ^ (keys >> 32)).to(torch.int32)


def by_whole_rows(array: StoredArray, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs that agree in a part of the row, as pairs of rows that agree as a whole."""
    import torch

    rows = sorted({row for pair in pairs for row in pair})
    if not rows:
        return []
    keys = torch.cat(list(_whole(array, rows)))
    return [(rows[later], rows[earlier]) for later, earlier in repeated(keys)]


def _whole(array: StoredArray, rows: list[int]) -> Iterator[torch.Tensor]:
    import torch

    if len(rows) <= _READ_ONE_BY_ONE:
        for row in rows:
            for _, block in array.blocks(row, row + 1):
                yield fingerprints(block)
        return
    wanted = torch.tensor(rows)
    for first, block in array.blocks(0, None):
        begin, end = torch.searchsorted(wanted, torch.tensor([first, first + block.shape[0]])).tolist()
        if begin < end:
            yield fingerprints(block)[wanted[begin:end] - first]
