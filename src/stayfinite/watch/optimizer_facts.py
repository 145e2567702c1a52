"""The facts of an optimizer, as its groups and its state say them (see findings/subjects/run_record.py)."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings import as_float
from stayfinite.findings.subjects.run_record import OptimizerFacts, Place


def rate_of(optimizer: Optimizer) -> float | None:
    """The learning rate of the first group."""
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    return float(rate) if isinstance(rate, (int, float, Tensor)) else None


def optimizer_facts(
    optimizer: Optimizer,
    steps: int | None = None,
    created: Place = Place(),  # noqa: B008 - frozen
    stepped: Place = Place(),  # noqa: B008
) -> OptimizerFacts:
    """`steps`: how often it stepped, if somebody counted; else what its state says, which may cost a transfer."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    state = [
        v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, Tensor) and v.dim()
    ]
    dtypes = [t.dtype for t in (state or parameters) if t.dtype.is_floating_point]
    eps = as_float(group.get("eps"))
    return OptimizerFacts(
        kind=type(optimizer).__name__,
        lr=rate_of(optimizer) or 0.0,
        eps=eps,
        eps_in_dtype=_rounded(eps, dtypes[0]) if eps is not None and dtypes else None,
        param_dtypes=_names(parameters),
        state_dtypes=_names(state),
        steps=_steps_taken(optimizer) if steps is None else steps,
        created=created,
        stepped=stepped,
        momentum=max((as_float(g.get("momentum")) or 0.0 for g in optimizer.param_groups), default=0.0),
        shrinking=_shrinking(optimizer),
    )


def _shrinking(optimizer: Optimizer) -> tuple[float, float] | None:
    """Of the optimizers that multiply weights by 1 - rate * decay: decoupled ones, and SGD, which adds decay * weight
    to the gradient. Adam and others divide that sum by its own size."""
    direct = type(optimizer) in (torch.optim.SGD, torch.optim.AdamW)
    found = [
        (rate, decay)
        for group in optimizer.param_groups
        if (direct or group.get("decoupled_weight_decay"))
        and (rate := as_float(group.get("lr"))) is not None
        and (decay := as_float(group.get("weight_decay")))
    ]
    return max(found, key=lambda pair: pair[0] * pair[1], default=None)


@cache
def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=dtype))


def _names(tensors: list[Tensor]) -> tuple[str, ...]:
    return tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))


def _steps_taken(optimizer: Optimizer) -> int:
    return max((int(entry["step"]) for entry in optimizer.state.values() if "step" in entry), default=0)
