"""What the optimizer does otherwise: a lower rate, clipping, a larger eps, float32 master weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE, Kind
from stayfinite.remedies.remedy import Remedy

_OF_THE_UPDATE = frozenset({Kind.HALF_UPDATE, Kind.OPTIMIZER_DIVISION})


class LowerRate(Remedy):
    """A tenth of the learning rate."""

    name = "lower-rate"
    sentence = "train at a tenth of the learning rate"
    kinds = DEPENDS_ON_SIZE
    popular, trains_otherwise, rank = True, True, 8
    factor = 0.1

    def applied(self) -> AbstractContextManager[None]:
        return _around_steps(_scale_rates(self.factor), _restore_rates)


class MuchLowerRate(LowerRate):
    """A hundredth of the learning rate."""

    name = "much-lower-rate"
    sentence = "train at a hundredth of the learning rate"
    kinds = frozenset({Kind.GROWN, Kind.ABSURD_PARAMETER, Kind.POWER_OVERFLOW})
    popular, rank = False, 9
    factor = 0.01


class Clipping(Remedy):
    """Gradient norms of at most 1."""

    name = "clipping"
    sentence = "clip the gradient norm at 1"
    kinds = DEPENDS_ON_SIZE
    popular, trains_otherwise, rank = True, True, 8

    def applied(self) -> AbstractContextManager[None]:
        return _around_steps(_clip, _nothing)


class LargerEps(Remedy):
    """An eps of 1e-4 in the optimizer."""

    name = "larger-eps"
    sentence = "give the optimizer an eps of 1e-4"
    kinds = _OF_THE_UPDATE
    popular, trains_otherwise, rank = True, True, 8

    def applied(self) -> AbstractContextManager[None]:
        return _around_steps(_larger_eps, _nothing)


class MasterWeights(Remedy):
    """Weights and moments of the optimizer in float32; the model gets rounded copies."""

    name = "master-weights"
    sentence = "keep master weights and optimizer state in float32"
    kinds = _OF_THE_UPDATE
    rank = 2

    def applied(self) -> AbstractContextManager[None]:
        masters: dict[int, Any] = {}
        return _around_steps(lambda o: _widen(o, masters), lambda o: _narrow(o, masters))


@contextmanager
def _around_steps(before: Callable[[Any], object], after: Callable[[Any], object]) -> Iterator[None]:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        before(optimizer)

    def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
        after(optimizer)

    first, last = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)
    try:
        yield
    finally:
        first.remove()
        last.remove()


_KEPT = "_stayfinite_rate"


def _scale_rates(factor: float) -> Callable[[Any], object]:
    def scale(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group[_KEPT] = group["lr"]
            group["lr"] = group["lr"] * factor

    return scale


def _restore_rates(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        if _KEPT in group:
            group["lr"] = group.pop(_KEPT)


def _nothing(optimizer: Any) -> None:
    pass


def _clip(optimizer: Any) -> None:
    import torch

    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if parameters:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)


def _larger_eps(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        if "eps" in group:
            group["eps"] = max(group["eps"], 1e-4)


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


def _narrow(optimizer: Any, masters: dict[int, Any]) -> None:
    for dtype, wide, p in list(masters.values()):
        if p.dtype == wide.dtype:
            gradient, p.grad = p.grad, None
            p.data = wide.to(dtype)
            p.grad = gradient.to(dtype) if gradient is not None else None
