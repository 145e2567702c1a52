"""The journal of a trace: one entry per tensor written, found again by the memory it was written to.

Entries hold numbers and names, never tensors: a storage is known by a weak reference, so the trace keeps no
activation alive. The journal is bounded: old healthy entries are forgotten.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stayfinite.replay.operations import Operation
from stayfinite.replay.sites import Site

_HEALTHY_KEPT = 60_000
_BAD_KEPT = 40_000
_PRUNE_EVERY = 128
NO_ROOTS: frozenset[int] = frozenset()


class Entry:
    """One tensor, as one op wrote it."""

    __slots__ = (
        "absmax", "autocast", "call", "cast", "consumed", "dtype", "forward", "hidden_by", "id", "learnt",
        "least", "loss_like", "module", "name", "node", "op", "origin", "parents", "phase", "roots", "scalars",
        "shape", "site", "sparse", "step", "swell", "visible", "weight",
    )  # fmt: skip

    def __init__(self, op: Operation | None, origin: str, site: Site | None, phase: str) -> None:
        self.id = -1
        self.op = op
        self.origin = origin  # see ORIGINS of traced_birth
        self.site = site
        self.phase = phase
        self.name: str | None = None
        self.call: Any = None  # the function that the script called
        self.module: str | None = None
        self.parents: tuple[int, ...] = ()
        self.scalars: dict[str, Any] = {}
        self.absmax = 0.0
        self.least: float | None = (
            None  # the smallest value of an exponential: above 0 unless it has underflowed
        )
        self.dtype = ""
        self.shape: tuple[int, ...] = ()
        self.roots: frozenset[int] = NO_ROOTS  # the births whose bad values are in it
        self.cast: frozenset[int] = NO_ROOTS  # the births whose bad values became whole numbers in it
        self.swell: int | None = None  # the birth of a finite but enormous gradient in it
        self.node: str | None = None  # the autograd node, in the backward pass
        self.forward: int | None = None  # the entry of the forward op behind it
        self.consumed = False  # something was computed from it
        self.visible = False  # handed to the user's own code
        self.hidden_by: list[int] = []  # entries that read it and came out finite
        self.loss_like = False  # a single number with a graph behind it
        self.sparse = False  # what was written are the numbers of a sparse tensor, without their places
        self.step = 0
        self.learnt = False  # it is a parameter, or was computed from one
        self.weight = False  # a parameter was written: by an update, or loaded
        self.autocast: str | None = None

    @property
    def bad(self) -> bool:
        return bool(self.roots)


def memory_key(tensor: torch.Tensor) -> int | None:
    """The identity of the memory behind a tensor; None for tensors without a storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _weak(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _gone(reference: StorageWeakRef) -> bool:
    return bool(reference.expired())  # type: ignore[no-untyped-call]


class OpJournal:
    """Entries by number, and the last entry written to each storage."""

    def __init__(self) -> None:
        self._next = 0
        self._entries: dict[int, Entry] = {}
        self._healthy: deque[int] = deque()
        self._bad: deque[int] = deque()
        self._memory: dict[int, tuple[StorageWeakRef, int]] = {}
        self._until_prune = _PRUNE_EVERY

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_number(self) -> int:
        return self._next

    def get(self, number: int) -> Entry | None:
        return self._entries.get(number)

    def add(self, entry: Entry, tensor: torch.Tensor | None) -> Entry:
        """Number an entry and remember that this tensor's memory now holds it."""
        entry.id = self._next
        self._next += 1
        self._entries[entry.id] = entry
        queue, limit = (self._bad, _BAD_KEPT) if entry.roots else (self._healthy, _HEALTHY_KEPT)
        queue.append(entry.id)
        if len(queue) > limit:
            self._entries.pop(queue.popleft(), None)
        if tensor is not None:
            self._write(tensor, entry.id)
        return entry

    def _write(self, tensor: torch.Tensor, number: int) -> None:
        key = memory_key(tensor)
        if key is None:
            return
        known = self._memory.get(key)
        # While the weak reference is held the address cannot be given to another storage.
        reference = known[0] if known is not None else _weak(tensor)
        self._memory[key] = (reference, number)
        self._until_prune -= 1
        if self._until_prune <= 0:
            # What is left of a dead storage is small, but it tears holes into the heap.
            self._memory = {k: v for k, v in self._memory.items() if not _gone(v[0])}
            self._until_prune = max(_PRUNE_EVERY, len(self._memory) // 2)

    def writer(self, tensor: torch.Tensor) -> Entry | None:
        """The entry last written to this tensor's memory, if it is still known."""
        key = memory_key(tensor)
        known = self._memory.get(key) if key is not None else None
        return self._entries.get(known[1]) if known is not None else None

    def latest_bad(self) -> list[Entry]:
        """Bad entries, newest first."""
        return [entry for number in reversed(self._bad) if (entry := self._entries.get(number)) is not None]

    def alive_now(self) -> set[int]:
        """The numbers of the entries whose memory still holds what they wrote."""
        return {number for reference, number in self._memory.values() if not _gone(reference)}
