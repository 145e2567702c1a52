"""Which rows repeat an earlier one: equal rows share an integer, and rows that share one are compared.

Where rows can be read again, sixteen words from the middle of each tell most of them apart; only rows that agree there
are read whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stayfinite.readers.data import StoredArray

if TYPE_CHECKING:
    import torch

_PART = 16
_WIDE = 64
_LOOKED_AT_FIRST = 512
_ALIKE = 0.02
_READ_ONE_BY_ONE = 20_000


def fingerprints(block: torch.Tensor, part: bool = False) -> torch.Tensor:
    """One integer a row that equal rows share: the sum of their bits, eight bytes at a time where they divide so.

    With `part`, of the middle of the row only.
    """
    import torch

    rows = block.contiguous()
    nbytes = rows.shape[1] * rows.element_size()
    if nbytes % 8 == 0:
        words = (
            rows.view(torch.int64)
            if rows.element_size() <= 8
            else torch.view_as_real(rows).flatten(1).view(torch.int64)
        )
    else:
        words = rows.view(torch.uint8).to(torch.int64)
    if words.shape[1] <= _WIDE or nbytes % 8:
        # Short rows and bytes repeat the same sums: weigh the places differently.
        places = torch.arange(1, words.shape[1] + 1, dtype=torch.int64) * 0x9E3779B97F4A7C1
        return ((words ^ (words >> 29)) * places).sum(dim=1)
    if part:
        middle = words.shape[1] // 2
        return words[:, middle : middle + _PART].sum(dim=1)
    return words.sum(dim=1)


def parts_suffice(array: StoredArray) -> bool:
    """Rows can be read again, and the middles of a few hundred of them, at two places, differ."""
    import torch

    if array.rows is None:
        return False
    for begin in (0, array.rows // 2):
        keys = [fingerprints(block, part=True) for _, block in array.blocks(begin, begin + _LOOKED_AT_FIRST)]
        if keys and len(repeated(torch.cat(keys))) > _ALIKE * _LOOKED_AT_FIRST:
            return False
    return True


def repeated(keys: torch.Tensor) -> list[tuple[int, int]]:
    """Pairs (row, earlier row) with the same integer; the caller compares the rows themselves."""
    import torch

    # Four bytes of each are sorted in half the time, and few rows are left to be sorted by all eight.
    ordered, order = torch.sort((keys ^ (keys >> 32)).to(torch.int32), stable=True)
    same = ordered[1:] == ordered[:-1]
    if not same.any():
        return []
    beside = torch.zeros(keys.numel(), dtype=torch.bool)
    beside[1:] = same
    beside[:-1] |= same
    rows = order[beside].sort().values
    ordered, order = torch.sort(keys[rows], stable=True)
    same = ordered[1:] == ordered[:-1]
    later, earlier = rows[order[1:][same]], rows[order[:-1][same]]
    return sorted(zip(later.tolist(), earlier.tolist(), strict=True))


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
