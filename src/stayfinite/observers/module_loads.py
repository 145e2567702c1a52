"""What the state of a model brought that no training leaves behind: NaN, absurd weights, negative variances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import LoadEvent, Place
from stayfinite.replay.measure import magnitude, measurable

_ENORMOUS = 1e15  # no weight is so large; its square times the width of a layer is beyond float32
_NAMED = 16


def what_was_loaded(module: torch.nn.Module, state: Mapping[str, Any], place: Place, step: int) -> LoadEvent:
    """The event of a state that a model has now."""
    weights = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    sizes = [
        (name, value, magnitude(value))
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and measurable(value)
    ]
    bad = [
        name
        for name, value, size in sizes
        if not math.isfinite(size) and (name in weights or not _is_mask(name, value))
    ]
    enormous = [(name, size) for name, _, size in sizes if name in weights and _ENORMOUS < size < math.inf]
    return LoadEvent(
        "module",
        place,
        step,
        nonfinite=tuple(bad[:_NAMED]),
        enormous=tuple(enormous[:_NAMED]),
        negative=tuple(_negative_variances(module, state))[:_NAMED],
    )


def modules_in(loaded: Any) -> list[torch.nn.Module]:
    """Whole models among what a file held: the object itself, or the values of a dict, list or tuple."""
    values = list(loaded.values()) if isinstance(loaded, dict) else loaded
    values = values if isinstance(values, (list, tuple)) else [values]
    return [value for value in values if isinstance(value, torch.nn.Module)]


def _negative_variances(module: torch.nn.Module, state: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Running variances of which an evaluation takes the root of a negative number."""
    for prefix, part in module.named_modules():
        name = f"{prefix}.running_var" if prefix else "running_var"
        value, eps = state.get(name), getattr(part, "eps", 0.0)
        if isinstance(value, torch.Tensor) and measurable(value) and isinstance(eps, float):
            lowest = float(value.min())
            if lowest < -eps:
                yield name, lowest


def _is_mask(name: str, buffer: torch.Tensor) -> bool:
    """A buffer of -inf is a mask; a running statistic of Inf is not."""
    return "running" not in name and not bool(torch.isnan(buffer).any())
