"""What an unchanged script trains: its models and their averages, found by the parameters of its optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.replay.living import living_models


def training_parts(optimizers: Sequence[Optimizer]) -> tuple[dict[str, nn.Module], list[nn.Module]]:
    """(models that the optimizers train, also losses with buffers; copies that follow them, such as averages)."""
    trained = {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
    loose = dict(trained)
    models: dict[str, nn.Module] = {}
    others: list[nn.Module] = []
    for model in living_models():
        parameters = {id(p) for p in nn.Module.parameters(model)}
        if parameters & trained.keys() or (not parameters and any(True for _ in model.buffers())):
            models[_free_name(type(model).__name__, models)] = model
        elif parameters:
            others.append(model)
        for number in parameters:
            loose.pop(number, None)
    if loose:
        models[_free_name("tensors", models)] = _Tensors(list(loose.values()))
    shapes = [_shapes(model) for model in models.values()]
    return models, [other for other in others if _inner_shapes(other) in shapes]


class _Tensors(nn.Module):
    """Tensors that an optimizer trains and no module holds."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        yield from ((str(number), tensor) for number, tensor in enumerate(self._tensors))


def _free_name(name: str, taken: dict[str, nn.Module]) -> str:
    number, free = 2, name
    while free in taken:
        free, number = f"{name}{number}", number + 1
    return free


def _shapes(model: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(p.shape)) for name, p in model.named_parameters()]


def _inner_shapes(model: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Of a copy, or of what torch's AveragedModel keeps as its module."""
    inner = getattr(model, "module", None)
    return _shapes(inner if isinstance(inner, nn.Module) else model)
