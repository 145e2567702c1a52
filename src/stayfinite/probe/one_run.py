"""Run: what one forward and backward pass gave, and the judgement whether all of it is finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from stayfinite.watch.finite import all_finite, nonfinite

_SPIKE = 1e10
"""A gradient this large is no gradient: normalising a zero vector gives 1e12. Healthy ones stay below 1e6."""


@dataclass(slots=True)
class Run:
    """What one pass gave. `bad` is None where everything was finite."""

    loss: Tensor | None = None
    components: dict[str, Tensor] = field(default_factory=dict)
    outputs: list[tuple[str, Tensor]] = field(default_factory=list)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)  # largest finite gradient at the output of a module
    bad: str | None = None  # "output", "loss", "component", "gradient", "spike"
    what: str = ""
    error: Exception | None = None
    spares_weights: bool = False  # the loss is bad, and yet every gradient is finite


def judge(run: Run) -> None:
    """Say what of it is bad, the earliest first: a component, the loss, a gradient, an absurd gradient."""
    assert run.loss is not None
    loss = run.loss.detach()
    run.spares_weights = all_finite([g for g in run.gradients.values() if g is not None])
    for name, part in run.components.items():
        if not torch.isfinite(part.detach()):
            run.bad, run.what = "component", f"the loss component {name!r} is {_number(part)}"
            return
    if not torch.isfinite(loss):
        run.bad, run.what = "loss", f"the loss is {_number(loss)}"
        return
    present = [(name, g) for name, g in run.gradients.items() if g is not None]
    bad = nonfinite(present)
    if bad:
        count = "NaN" if bad[0].nan else "Inf"
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        run.bad = "gradient"
        run.what = (
            f"the loss is finite ({_number(loss)}), but the gradient of {bad[0].name} holds {count}{more}"
        )
        return
    for name, gradient in present:
        largest = float(gradient.detach().abs().max()) if gradient.numel() and not gradient.is_sparse else 0.0
        if largest > _SPIKE:
            run.bad, run.what = "spike", f"the gradient of {name} reaches {largest:.3g}"
            return
    for name, largest in run.peaks.items():
        if largest > _SPIKE:
            run.bad, run.what = "spike", f"the gradient at the output of {name} reaches {largest:.3g}"
            return


def peaking(peaks: dict[str, float], name: str) -> Callable[..., None]:
    """A hook that notes how large the gradient at a module's output gets."""

    def note(gradient: Tensor) -> None:
        largest = float(gradient.detach().abs().max()) if gradient.numel() else 0.0
        if math.isfinite(largest):
            peaks[name] = max(largest, peaks.get(name, 0.0))

    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(note)  # type: ignore[no-untyped-call]

    return hook


def _number(value: Tensor) -> str:
    return f"{float(value.detach()):.4g}".replace("nan", "NaN").replace("inf", "Inf")
