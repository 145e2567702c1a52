"""Finds out which weight each optimizer state belongs to: torch numbers them, people want names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind, Optimizer, Tensor

MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum")
_NO_DECAY = re.compile(r"bias$|norm|(^|[._])ln|(^|[._])bn", re.I)


def match_moments(checkpoint: Checkpoint) -> None:
    """Set `Tensor.parameter` to a weight's name where the order and all shapes agree."""
    weights = checkpoint.of_kind(Kind.WEIGHTS)
    for optimizer in checkpoint.optimizers:
        own = [
            tensor
            for tensor in checkpoint.of_kind(Kind.OPTIMIZER)
            if tensor.file == optimizer.file
            and tensor.name.startswith(f"{optimizer.name}.state." if optimizer.name else "state.")
        ]
        numbers = [parameter for group in optimizer.groups for parameter in group.parameters]
        if numbers and all(number.isdigit() for number in numbers):
            names = _names(optimizer, weights, own)
            for tensor in own:
                tensor.parameter = names.get(tensor.parameter or "", tensor.parameter)


def _names(optimizer: Optimizer, weights: Sequence[Tensor], moments: Sequence[Tensor]) -> dict[str, str]:
    """From a parameter's number to a weight's name; empty where no order of the weights fits."""
    numbers = [number for group in optimizer.groups for number in group.parameters]
    shapes = {t.parameter: t.shape for t in moments if t.role in MOMENTS and t.parameter is not None}
    if any(weight.file.endswith(".safetensors") for weight in weights):
        return _by_unique_shape(shapes, weights)  # this format sorts its tensors: their order says nothing
    sections: dict[str, list[Tensor]] = {}
    for weight in weights:
        sections.setdefault(weight.name.removesuffix(weight.key), []).append(weight)
    for candidates in (list(weights), *sections.values()):
        if len(candidates) != len(numbers):
            continue
        for ordered in _orders(candidates, [len(group.parameters) for group in optimizer.groups]):
            pairs = list(zip(numbers, ordered, strict=True))
            if all(shapes.get(number, weight.shape) == weight.shape for number, weight in pairs):
                return {number: weight.name for number, weight in pairs}
    return {}


def _by_unique_shape(shapes: dict[str, tuple[int, ...]], weights: Sequence[Tensor]) -> dict[str, str]:
    """Only what cannot be anything else: one weight and one moment of this shape."""
    of_weights = Counter(weight.shape for weight in weights)
    of_moments = Counter(shapes.values())
    names = {weight.shape: weight.name for weight in weights}
    sure = [
        (number, shape) for number, shape in shapes.items() if of_moments[shape] == of_weights[shape] == 1
    ]
    return {number: names[shape] for number, shape in sure}


def _orders(weights: list[Tensor], sizes: list[int]) -> list[list[Tensor]]:
    """The ways people order parameters: as in the model, or those with weight decay before the others."""
    splits: tuple[Callable[[Tensor], bool], ...] = (
        lambda weight: len(weight.shape) >= 2,
        lambda weight: not _NO_DECAY.search(weight.key),
    )
    orders = [weights]
    if len(sizes) == 2:
        for decays in splits:
            first = [weight for weight in weights if decays(weight)]
            second = [weight for weight in weights if not decays(weight)]
            for ordered, size in ((first + second, len(first)), (second + first, len(second))):
                if size == sizes[0]:
                    orders.insert(0, ordered)
    return orders
