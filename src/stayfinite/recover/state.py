"""TrainingState: all that makes up a run, under the names a user knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.recover.wrapped import optimizer_of, unwrapped
from stayfinite.shards import state_of

Models: TypeAlias = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]


def as_list(value: Any) -> list[Any]:
    """None -> [], one -> [one], several -> list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def name_models(models: Models) -> dict[str, nn.Module]:
    """One model needs no prefix; several are told apart by their key or position."""
    if isinstance(models, nn.Module):
        return {"": models}
    if not isinstance(models, (Mapping, Sequence)):
        raise TypeError(
            f"Guard(model=...) takes a torch.nn.Module, or several in a list or dict; got a {type(models).__name__}"
        )
    named = dict(models) if isinstance(models, Mapping) else {f"model{i}": m for i, m in enumerate(models)}
    for name, model in named.items():
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"Guard(model=...) takes a torch.nn.Module, or several in a list or dict; "
                f"{name!r} is a {type(model).__name__}"
            )
    if not named:
        raise ValueError("Guard(model=...) got no model at all; pass the module that is trained")
    return named


class TrainingState:
    """Models, optimizers, schedulers, scaler and averages of one run, under the names a user knows."""

    def __init__(
        self, models: Models, optimizers: Any, schedulers: Any = None, scaler: Any = None, ema: Any = None
    ) -> None:
        self.models = name_models(models)
        self.optimizers: list[Optimizer] = [unwrapped(each) for each in as_list(optimizers)]
        for optimizer in self.optimizers:
            if not isinstance(optimizer, Optimizer):
                raise TypeError(
                    f"Guard(optimizer=...) takes torch optimizers; got a {type(optimizer).__name__}"
                )
        self.schedulers: list[Any] = as_list(schedulers)
        self.scaler = scaler
        self.averages: list[nn.Module] = as_list(ema)
        self._averaged = [self._model_of(average, index) for index, average in enumerate(self.averages)]
        self.parameter_names = self._name_parameters()
        self._held: dict[tuple[int, ...], tuple[list[int], list[Tensor]]] = {}

    def _name_parameters(self) -> dict[Tensor, str]:
        """Every parameter once, in the models' own order; those only an optimizer knows come last."""
        names: dict[Tensor, str] = {}
        for prefix, model in self.models.items():
            for name, parameter in model.named_parameters():
                names.setdefault(parameter, _join(prefix, name))
        for index, optimizer in enumerate(self.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for i, parameter in enumerate(group["params"]):
                    names.setdefault(parameter, f"optimizer{index}.group{g}.param{i}")
        return names

    def held_by(self, optimizers: Sequence[Optimizer]) -> list[Tensor]:
        """The parameters these optimizers hold now, in the models' own order, as clip_grad_norm_ would see them.

        Looked up anew whenever they change: layers are unfrozen, replaced and added in the middle of runs.
        """
        key = tuple(map(id, optimizers))
        groups = (group["params"] for optimizer in optimizers for group in optimizer.param_groups)
        held = list(map(id, chain.from_iterable(groups)))
        known = self._held.get(key)
        if known is None or known[0] != held:
            fresh = self._name_parameters()
            self.parameter_names.clear()
            self.parameter_names.update(fresh)
            chosen = set(held)
            known = held, [p for p in self.parameter_names if id(p) in chosen]
            self._held[key] = known
        return known[1]

    def last_held_by(self, optimizers: Sequence[Optimizer]) -> list[Tensor]:
        """The same as it was looked up last, without another look."""
        known = self._held.get(tuple(map(id, optimizers)))
        return known[1] if known is not None else self.held_by(optimizers)

    def schedulers_of(self, optimizers: Sequence[Optimizer]) -> list[Any]:
        """The schedulers of these optimizers; one that does not say whose it is goes with any."""
        return [s for s in self.schedulers if (own := optimizer_of(s)) is None or own in optimizers]

    def averages_of(self, optimizers: Sequence[Optimizer]) -> list[tuple[nn.Module, nn.Module]]:
        """(average, model) of every model that these optimizers train."""
        if not self.averages:
            return []
        held = {
            id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
        }
        return [
            (average, model)
            for average, model in zip(self.averages, self._averaged, strict=True)
            if len(self.models) == 1 or any(id(p) in held for p in nn.Module.parameters(model))
        ]

    def _model_of(self, average: nn.Module, index: int) -> nn.Module:
        """The model whose average this is: the one of its shapes and, when it was made, of its values."""
        models = list(self.models.values())
        if len(models) == 1:
            return models[0]
        inner = getattr(average, "module", None)
        mine = list(nn.Module.parameters(inner if isinstance(inner, nn.Module) else average))
        alike = (
            [m for m in models if [p.shape for p in nn.Module.parameters(m)] == [p.shape for p in mine]]
            if mine
            else []
        )
        same = [
            m
            for m in alike
            if all(torch.equal(a, b) for a, b in zip(nn.Module.parameters(m), mine, strict=True))
        ]
        in_order = [models[index]] if index < len(models) and models[index] in (alike or models) else []
        return (same if len(same) == 1 else in_order or same or alike or models)[0]

    def buffer_slots(self) -> Iterator[tuple[str, nn.Module, str]]:
        """(name, owner, key) of every buffer of the models, persistent or not."""
        yield from _buffer_slots(self.models)

    def average_buffer_slots(self) -> Iterator[tuple[str, nn.Module, str]]:
        """The same of the averages."""
        yield from _buffer_slots(dict(named_averages(self.averages)))

    def optimizer_slots(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every tensor an optimizer keeps."""
        for optimizer in self.optimizers:
            for parameter, entry in state_of(optimizer).items():
                owner = self.parameter_names.get(parameter, "?") if isinstance(parameter, Tensor) else "?"
                for key, value in entry.items():
                    name = f"{type(optimizer).__name__}[{owner}].{key}"
                    if isinstance(value, Tensor):
                        yield name, value
                    elif isinstance(value, (list, tuple)):  # LBFGS keeps its history in lists
                        yield from ((f"{name}[{i}]", v) for i, v in enumerate(value) if isinstance(v, Tensor))

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of everything that must stay finite."""
        for parameter, name in self.parameter_names.items():
            yield "parameter", name, parameter
        for name, owner, key in (*self.buffer_slots(), *self.average_buffer_slots()):
            value = owner._buffers[key]
            if value is not None:
                yield "buffer", name, value
        for name, value in self.optimizer_slots():
            yield "optimizer", name, value
        for prefix, average in named_averages(self.averages):
            for name, parameter in average.named_parameters():
                yield "ema", _join(prefix, name), parameter

    def nbytes(self) -> int:
        """The size of one copy of it all."""
        return sum(t.numel() * t.element_size() for _, _, t in self.tensors())


Average = TypeVar("Average")


def named_averages(averages: Sequence[Average]) -> list[tuple[str, Average]]:
    """One is called "ema", several "ema0", "ema1"; the same for live modules and for what a checkpoint holds."""
    if len(averages) == 1:
        return [("ema", averages[0])]
    return [(f"ema{index}", average) for index, average in enumerate(averages)]


def _buffer_slots(models: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module, str]]:
    for prefix, model in models.items():
        for path, owner in model.named_modules():
            for key, _ in owner._buffers.items():  # a scripted module has no other way
                yield _join(_join(prefix, path), key), owner, key


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def update_average(average: nn.Module, model: nn.Module) -> None:
    """Tell an average that the model has moved; one that knows neither method is the user's own to update."""
    if isinstance(average, (nn.ModuleDict, nn.ParameterDict)):  # their `update` is that of a dict
        return
    for method in ("update_parameters", "update"):
        if callable(getattr(average, method, None)):
            getattr(average, method)(model)
            return
