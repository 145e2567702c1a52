"""TracedBatch: the last batch of a script that is traced, as long as its tensors are there."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.replay import Tracer
from stayfinite.replay.evidence import operand
from stayfinite.replay.measure import is_plain, magnitude, measurable
from stayfinite.replay.tracer import unfollowed

_SHOWN = 8


class TracedBatch:
    """What a DataLoader gave; without one, what the models were given."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._tensors: list[weakref.ref[torch.Tensor]] = []

    def note(self, batch: Any) -> None:
        """A DataLoader gives this one now."""
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        self._tensors = [weakref.ref(tensor) for tensor in tensors[:_SHOWN]]
        self._tracer.note_batch(batch)

    def _living(self) -> list[torch.Tensor]:
        known = self._tensors or self._tracer.follower.modules.inputs
        return [tensor for reference in known if (tensor := reference()) is not None]

    def operands(self) -> tuple[Operand, ...]:
        """Its tensors as evidence."""
        journal = self._tracer.follower.journal
        with unfollowed():
            tensors = [tensor for tensor in self._living() if is_plain(tensor)]
            return tuple(operand(f"batch[{i}]", t, journal.writer(t), journal) for i, t in enumerate(tensors))

    def absmax(self) -> float | None:
        """Its largest magnitude."""
        with unfollowed():
            return max((magnitude(tensor) for tensor in self._living() if measurable(tensor)), default=None)
