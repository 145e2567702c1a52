"""TracedBatch: the last batch of a script that is traced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.replay import Tracer
from stayfinite.replay.evidence import operand
from stayfinite.replay.measure import bad_samples, is_plain, magnitude, measurable
from stayfinite.replay.tracer import unfollowed
from stayfinite.watch.finite import tensors_in

_SHOWN = 8


class TracedBatch:
    """What a DataLoader gave, until it gives the next; without one, what modules (also of a loss) were given."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._given: list[tuple[str, torch.Tensor]] = []

    def note(self, batch: Any) -> None:
        """A DataLoader gives this one now."""
        with unfollowed():
            # The script may put others in the place of these (batch = batch.float()) before anybody asks.
            self._given = [(name, tensor.detach()) for name, tensor in tensors_in(batch)[:_SHOWN]]
        self._tracer.note_batch(batch)

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        inputs = [tensor for held in self._tracer.follower.modules.inputs if (tensor := held()) is not None]
        return self._given or [("what a module was given", tensor) for tensor in inputs]

    def operands(self) -> tuple[Operand, ...]:
        """Its tensors as evidence."""
        journal, modules = self._tracer.follower.journal, self._tracer.follower.modules
        size = modules.of_loader if self._given else modules.batch_size
        with unfollowed():
            return tuple(
                replace(
                    operand(name, tensor, journal.writer(tensor), journal),
                    samples=bad_samples(tensor, size) if measurable(tensor) else (),
                )
                for name, tensor in self._named()
                if is_plain(tensor)
            )

    def absmax(self) -> float | None:
        """Its largest magnitude."""
        with unfollowed():
            return max((magnitude(tensor) for _, tensor in self._named() if measurable(tensor)), default=None)
