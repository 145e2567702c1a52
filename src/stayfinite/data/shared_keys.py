"""Among millions of keys, the rows whose key may occur twice: found by sorting, which is what costs most of it.

Two ways that give the same pairs in the end. Which is the faster differs between processors by a factor of five, so
each is timed on a few keys: numpy's sort of 64-bit integers is the fast one where the processor compresses vectors
quickly (Intel), and dealing half of each key into groups that fit into the cache where it does not (AMD with AVX-512).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from stayfinite.readers.threads import on_threads

if TYPE_CHECKING:
    import torch

_SORTED_TOGETHER = 1 << 17
_TOGETHER = 1 << 16
_TIMED, _TURNS = 1 << 13, 3
_ODD = -0x61C8864680B583EB


def rows_of_shared_keys(keys: torch.Tensor, jobs: int) -> torch.Tensor:
    """Every row whose key another row has, in any order, and perhaps some more."""
    return (_by_one_sort if _numpy_sorts_fast() else _by_groups)(keys, jobs)


@cache
def _numpy_sorts_fast() -> bool:
    """Whether numpy sorts some 64-bit keys in less time than torch sorts as many of 32 bits."""
    import torch

    numpy: Any = importlib.import_module("numpy")
    keys = numpy.arange(_TIMED, dtype="int64") * _ODD
    halves = torch.from_numpy(keys.view("int32")[::2].copy())
    return _quickest(lambda: numpy.sort(keys)) < _quickest(lambda: torch.sort(halves))


def _quickest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_TURNS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def _by_one_sort(keys: torch.Tensor, jobs: int) -> torch.Tensor:
    """A copy is sorted; only if it holds equal neighbours are their rows looked for."""
    import torch

    numpy: Any = importlib.import_module("numpy")
    words = keys.numpy()
    ordered = words.copy()
    count = len(words)

    def equal_neighbours(begin: int) -> Any:
        part = ordered[begin : begin + _TOGETHER + 1]
        return part[1:][part[1:] == part[:-1]]

    def places(part: Any) -> Any:
        return (part * numpy.int64(_ODD)) >> 48  # from -32768: the table's last places

    def rows_of(begin: int) -> Any:
        return begin + table.take(places(words[begin : begin + _TOGETHER]), mode="wrap").nonzero()[0]

    parts = [ordered]
    while len(parts) < jobs:  # the lower and the upper half of each, so that threads can share the sorting
        on_threads(lambda part: part.partition(len(part) // 2), parts, jobs)
        parts = [half for part in parts for half in (part[: len(part) // 2], part[len(part) // 2 :])]
    on_threads(lambda part: part.sort(), parts, jobs)
    shared = numpy.concatenate(on_threads(equal_neighbours, range(0, count, _TOGETHER), jobs))
    if not len(shared):
        return torch.empty(0, dtype=torch.int64)
    table = numpy.zeros(1 << 16, "bool")
    table[places(shared)] = True
    return torch.from_numpy(numpy.concatenate(on_threads(rows_of, range(0, count, _TOGETHER), jobs)))


def _by_groups(keys: torch.Tensor, jobs: int) -> torch.Tensor:
    """By a digest of 32 bits: rows are dealt into groups by a byte of it, and each group is sorted for itself."""
    import torch

    numpy: Any = importlib.import_module("numpy")
    count = keys.numel()
    groups = min(256, 1 << max(1, count // _SORTED_TOGETHER).bit_length() - 1)
    halves = keys.numpy().view("int32")
    dealt, order = numpy.empty(count, "int32"), numpy.empty(count, "int32")

    def deal(begin: int) -> Any:
        """Puts some rows into the order of their groups; returns where each begins."""
        end = min(begin + _TOGETHER, count)
        digests = halves[2 * begin : 2 * end : 2] ^ halves[2 * begin + 1 : 2 * end : 2]
        group = digests.view("uint8")[::4] & numpy.uint8(groups - 1)
        in_order, rows = (
            made.numpy() for made in torch.sort(torch.from_numpy(group))
        )  # of bytes: by counting
        numpy.take(digests, rows, out=dealt[begin:end], mode="clip")
        numpy.add(rows, begin, out=order[begin:end], casting="unsafe")
        return begin + numpy.searchsorted(in_order, numpy.arange(groups + 1, dtype="uint16"))

    def meet(group: int) -> torch.Tensor:
        parts = [slice(places[group], places[group + 1]) for places in borders]
        digests = torch.from_numpy(numpy.concatenate([dealt[part] for part in parts]))
        positions = beside(*torch.sort(digests))
        rows = numpy.concatenate([order[part] for part in parts]) if positions.numel() else order[:0]
        return torch.from_numpy(rows)[positions]

    borders = on_threads(deal, range(0, count, _TOGETHER), jobs)
    return torch.cat(on_threads(meet, range(groups), jobs)).to(torch.int64)


def beside(ordered: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Of rows in order, those that equal their neighbour."""
    import torch

    equal = (ordered[1:] == ordered[:-1]).nonzero().flatten()
    return torch.cat((rows[equal], rows[equal + 1]))
