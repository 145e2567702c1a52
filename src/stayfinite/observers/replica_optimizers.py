"""Replicas of one model inside a script: optimizers that get exactly the same gradients, at weights that differ.

Copies that learn for themselves (an ensemble, a GAN, a second experiment) have gradients of their own as soon as
their weights differ. Only gradients that were averaged and handed out stay equal then, to the last bit.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from stayfinite.findings.subjects.run_record import Place, ReplicaFacts
from stayfinite.replay.measure import is_plain, measurable

_KEPT = 1024  # steps looked at
_TRIED = 16  # steps without a common gradient after which two optimizers are strangers
_ENOUGH = 2  # equal gradients at weights that differ
_MOST = 0.8  # of the steps of the one that stepped less

Signature = tuple[str, tuple[tuple[int, ...], ...]]


@dataclass(slots=True)
class _Stepping:
    """One optimizer and, for each of its steps, the norms of its gradients and of its weights before it."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    signature: Signature
    first_rate: float | None
    first_weights: float | None = None
    steps: int = 0
    weights_at: dict[float, float] = field(default_factory=dict)  # by the norm of the gradients
    place: Place = field(default_factory=Place)
    off: bool = False


def total_norm(gradients: list[torch.Tensor]) -> float:
    """The norm over all gradients; NaN or Inf when any is not finite. One fused pass per device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    square = 0.0
    for group in groups.values():
        norms = torch.stack(torch._foreach_norm(group))
        square += float(torch.linalg.vector_norm(norms.double())) ** 2
    return math.sqrt(square) if square >= 0 else math.nan


class ReplicaOptimizers:
    """Optimizers of the same kind over parameters of the same shapes."""

    def __init__(self) -> None:
        self._known: dict[int, _Stepping] = {}

    def created(self, optimizer: torch.optim.Optimizer, rate: float | None) -> None:
        """An optimizer was made."""
        self._known = {
            number: known for number, known in self._known.items() if known.optimizer() is not None
        }
        self._known.pop(id(optimizer), None)
        self._known[id(optimizer)] = _Stepping(weakref.ref(optimizer), signature_of(optimizer), rate)

    def stepping(self, optimizer: torch.optim.Optimizer, place: Place) -> None:
        """It is about to step."""
        own = self._known.get(id(optimizer))
        if own is None or own.off or own.optimizer() is not optimizer:
            return
        others = self._alike(own)
        if not others:
            return
        gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None and is_plain(p.grad)]
        if not gradients:
            return
        own.steps += 1
        own.place = place
        if len(own.weights_at) >= _KEPT:
            return
        weights = total_norm([p.detach() for p in _parameters(optimizer) if is_plain(p)])
        own.first_weights = weights if own.first_weights is None else own.first_weights
        gradient = total_norm(gradients)
        if gradient > 0 and math.isfinite(gradient) and math.isfinite(weights):
            own.weights_at[gradient] = weights
        own.off = own.steps == _TRIED and not any(
            own.weights_at.keys() & other.weights_at.keys() for other in others
        )

    def _alike(self, own: _Stepping) -> list[_Stepping]:
        if len(self._known) < 2:
            return []
        return [
            other
            for other in self._known.values()
            if other is not own and other.signature == own.signature and other.optimizer() is not None
        ]

    def facts(self) -> tuple[ReplicaFacts, ...]:
        """The replicas of the first model that has any that drifted; () when there are none."""
        for first in self._known.values():
            apart = [other for other in self._alike(first) if _drifted(first, other)]
            if apart and first.optimizer() is not None:
                return tuple(_facts(first, (first, *apart)))
        return ()


def _drifted(first: _Stepping, other: _Stepping) -> bool:
    """They began equal, nearly all gradients were common, and some of these at weights that were not equal."""
    if first.first_weights is None or first.first_weights != other.first_weights:
        return False
    if first.first_rate != other.first_rate or not _comparable(first, other):
        return False
    common = first.weights_at.keys() & other.weights_at.keys()
    differed = [g for g in common if first.weights_at[g] != other.weights_at[g]]
    fewer = min(len(first.weights_at), len(other.weights_at))
    return len(differed) >= _ENOUGH and len(common) >= _MOST * fewer


def _facts(first: _Stepping, replicas: tuple[_Stepping, ...]) -> Iterable[ReplicaFacts]:
    most = max(replica.steps for replica in replicas)
    for rank, replica in enumerate(replicas):
        drift = _largest_difference(first, replica)
        yield ReplicaFacts(
            rank=rank,
            skipped=most - replica.steps,
            equal=drift == 0.0,
            drift=drift if rank else None,
            place=replica.place,
        )


def _largest_difference(one: _Stepping, two: _Stepping) -> float:
    first, second = one.optimizer(), two.optimizer()
    if first is None or second is None:
        return 0.0
    pairs = zip(_parameters(first), _parameters(second), strict=True)
    differences = (
        float((a.detach().double() - b.detach().double()).abs().max())
        for a, b in pairs
        if a.numel() and measurable(a) and measurable(b)
    )
    return max(differences, default=0.0)


def _comparable(one: _Stepping, two: _Stepping) -> bool:
    """Both are still there, have the same shapes, and no parameter in common."""
    first, second = one.optimizer(), two.optimizer()
    if first is None or second is None or signature_of(first) != signature_of(second):
        return False
    return not {id(p) for p in _parameters(first)} & {id(p) for p in _parameters(second)}


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def signature_of(optimizer: torch.optim.Optimizer) -> Signature:
    """The kind of an optimizer and the shapes of what it trains."""
    return type(optimizer).__name__, tuple(tuple(p.shape) for p in _parameters(optimizer))
