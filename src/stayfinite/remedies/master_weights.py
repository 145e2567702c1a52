"""Master weights: the optimizer works in float32, the model gets rounded copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.around_updates import around_updates
from stayfinite.remedies.remedy import Case, Remedy


class MasterWeights(Remedy):
    """Weights and moments of the optimizer in float32; the model gets rounded copies."""

    name = "master-weights"
    sentence = "keep master weights and optimizer state in float32"
    kinds = frozenset({Kind.HALF_UPDATE, Kind.OPTIMIZER_DIVISION})
    of_updates, rank = True, 2

    def can_act(self, case: Case) -> bool:
        return case.in_half

    def applied(self) -> AbstractContextManager[None]:
        masters: dict[int, Any] = {}
        return around_updates(lambda o: _widen(o, masters), lambda o: _narrow(masters))


def _halves(optimizer: Any) -> Iterator[Any]:
    import torch

    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and p.dtype in (torch.float16, torch.bfloat16):
                yield p


def _widen(optimizer: Any, masters: dict[int, Any]) -> None:
    for p in _halves(optimizer):
        gradient, dtype = p.grad, p.dtype
        kept = masters.get(id(p))
        p.grad = None
        p.data = kept[1] if kept is not None else p.data.float()
        p.grad = gradient.float()
        masters[id(p)] = (dtype, p.data, p)
        for name, value in optimizer.state.get(p, {}).items():
            if hasattr(value, "dtype") and value.dtype == dtype and value.shape == p.shape:
                optimizer.state[p][name] = value.float()


def _narrow(masters: dict[int, Any]) -> None:
    for dtype, wide, p in list(masters.values()):
        if p.dtype == wide.dtype:
            gradient, p.grad = p.grad, None
            p.data = wide.to(dtype)
            p.grad = gradient.to(dtype) if gradient is not None else None
