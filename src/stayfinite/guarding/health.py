"""Health: which of a run's tensors must be finite, and which are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from stayfinite.findings import TensorSummary
from stayfinite.recover.archive import tensors_in_payload
from stayfinite.recover.state import TrainingState
from stayfinite.watch.finite import all_finite, nonfinite


class Health:
    """Buffers that are infinite from the start (masks of -inf, running minima of +inf) are so on purpose."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        buffers = ((name, tensor) for kind, name, tensor in state.tensors() if kind == "buffer")
        self._masks = {bad.name for bad in nonfinite(buffers) if bad.nan == 0}

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of all that must be finite."""
        return (
            (kind, name, tensor) for kind, name, tensor in self._state.tensors() if name not in self._masks
        )

    def bad(self) -> list[tuple[str, TensorSummary]]:
        """(kind, summary) of every parameter, buffer, moment and average that is not finite now."""
        tensors = list(self.tensors())
        if all_finite([tensor for _, _, tensor in tensors]):
            return []
        return [(kind, bad) for kind, name, tensor in tensors for bad in nonfinite([(name, tensor)])]

    def after_forward(self) -> bool:
        """Are the buffers finite? What a forward pass can break."""
        return all_finite([tensor for kind, _, tensor in self.tensors() if kind == "buffer"])

    def after_update(self) -> bool:
        """Are parameters and optimizer state finite? What an update can break."""
        return all_finite(
            [tensor for kind, _, tensor in self.tensors() if kind in ("parameter", "optimizer")]
        )

    def bad_in(self, payload: dict[str, Any]) -> list[TensorSummary]:
        """The tensors of a checkpoint's payload that are not finite, masks aside."""
        allowed = self._masks | {f"{part}.{name}" for name in self._masks for part in ("model", "buffers")}
        return [bad for bad in nonfinite(tensors_in_payload(payload)) if bad.name not in allowed]
