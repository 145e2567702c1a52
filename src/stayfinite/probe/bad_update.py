"""Why one update made a parameter NaN though its gradient is finite: an eps that is zero in its precision."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings.subjects.probed_model import Located


def why_not_finite(optimizer: Optimizer, parameter: Tensor) -> Located:
    """Where the optimizer divided by zero, as its state shows; nothing where it does not show it."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    squares = optimizer.state.get(parameter, {}).get("exp_avg_sq")
    eps = group.get("eps")
    if not isinstance(squares, Tensor) or not isinstance(eps, float) or squares.shape != parameter.shape:
        return Located()
    zero = int((~torch.isfinite(parameter) & (squares == 0)).sum())
    if not zero or float(torch.tensor(eps, dtype=squares.dtype)) != 0:
        return Located()
    dtype = str(squares.dtype).removeprefix("torch.")
    return Located(
        cause="OPTIMIZER_ZERO_DIV" if dtype == "float32" else "PURE_LOWP_OPTIMIZER",
        message=f"{type(optimizer).__name__}'s eps {eps:g} is exactly 0 in {dtype}, and so are the squared gradients "
        f"it keeps for {zero} values: it divides by 0, at any learning rate",
        fix="keep float32 weights with autocast and a GradScaler; else an eps of at least 1e-4",
    )
