"""Health: which of a run's tensors must be finite, and which are not."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from stayfinite.findings import Severity, TensorSummary
from stayfinite.recover.state import TrainingState
from stayfinite.watch.finite import all_finite, nonfinite, peaks, summarize


class Health:
    """Buffers that are infinite from the start (masks of -inf, running minima of +inf) are so on purpose.

    So are those that a forward pass registers later with -inf in them: a mask made when the first batch shows how
    long it must be. NaN is never on purpose.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self.largest = 0.0  # magnitude of the weights when all was looked at last
        buffers = [(name, tensor) for kind, name, tensor in state.tensors() if kind == "buffer"]
        self._masks = {bad.name for bad in nonfinite(buffers) if bad.nan == 0}
        self._known = {name for name, _ in buffers}

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of all that must be finite."""
        for kind, name, tensor in self._state.tensors():
            if kind == "buffer" and name not in self._known:
                self._known.add(name)
                if _is_mask(tensor):
                    self._masks.add(name)
            if name not in self._masks:
                yield kind, name, tensor

    def bad_tensors(self) -> list[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of the same."""
        names = {(kind, summary.name) for kind, summary in self.bad()}
        return [slot for slot in self._state.tensors() if slot[:2] in names] if names else []

    def bad(self) -> list[tuple[str, TensorSummary]]:
        """(kind, summary) of every parameter, buffer, moment and average that is not finite now."""
        tensors = list(self.tensors())
        found: list[tuple[str, TensorSummary]] = []
        weights = [tensor for kind, _, tensor in tensors if kind == "parameter"]
        others = [tensor for kind, _, tensor in tensors if kind != "parameter"]
        self.largest, largest_other = peaks(weights, others)
        if not (math.isfinite(self.largest) and math.isfinite(largest_other)):
            found = [(kind, bad) for kind, name, tensor in tensors for bad in nonfinite([(name, tensor)])]
        if self._masks:
            masks = [(kind, name, t) for kind, name, t in self._state.tensors() if name in self._masks]
            found += [(kind, s) for kind, name, t in masks if (s := summarize(name, t)).nan > 0]
        return found

    def after_forward(self) -> bool:
        """Are the buffers finite? What a forward pass can break."""
        return all_finite([tensor for kind, _, tensor in self.tensors() if kind == "buffer"])

    def after_update(self) -> bool:
        """Are parameters and optimizer state finite? What an update can break."""
        return all_finite(
            [tensor for kind, _, tensor in self.tensors() if kind in ("parameter", "optimizer")]
        )

    def bad_in(self, payload: dict[str, Any]) -> list[str]:
        """What of a checkpoint is not finite, by the checkpoint doctor; masks aside.

        Tensors, and the numbers that a resumed run would go on with: learning rates and their bases, betas, scales.
        """
        from stayfinite.checkpoint import verify  # loads the readers of all formats: only for a checkpoint

        verdict = verify(payload, only=("CKP005",))
        allowed = {f"{part}.{name}" for name in self._masks for part in ("model", "buffers")}
        allowed |= {
            re.sub(r"^ema(\d*)\.", lambda found: f"ema.{found[1] or 0}.", name) for name in self._masks
        }
        tensors = [
            f"{tensor.name} holds {found.nan} NaN and {found.inf} Inf"
            for tensor in verdict.bad_tensors
            if (found := tensor.statistics) is not None and (found.nan or tensor.name not in allowed)
        ]
        return tensors + [
            f.message for f in verdict.findings if f.severity is Severity.ERROR and "value" in f.evidence
        ]


def _is_mask(tensor: Tensor) -> bool:
    """-inf, and nothing else that is not finite."""
    if not tensor.is_floating_point() or tensor.is_meta:
        return False
    value = tensor.detach().float()  # narrow dtypes know no isneginf
    return bool(torch.isneginf(value).any()) and not bool((torch.isnan(value) | torch.isposinf(value)).any())
