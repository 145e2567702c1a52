"""TrainingState: all that makes up a run, and how to copy it and put it back bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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
        self.optimizers: list[Optimizer] = as_list(optimizers)
        for optimizer in self.optimizers:
            if not isinstance(optimizer, Optimizer):
                raise TypeError(
                    f"Guard(optimizer=...) takes torch optimizers; got a {type(optimizer).__name__}"
                )
        self.schedulers: list[Any] = as_list(schedulers)
        self.scaler = scaler
        self.averages: list[nn.Module] = as_list(ema)
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

    def buffer_slots(self) -> Iterator[tuple[str, nn.Module, str]]:
        """(name, owner, key) of every buffer of the models, persistent or not."""
        yield from _buffer_slots(self.models)

    def average_buffer_slots(self) -> Iterator[tuple[str, nn.Module, str]]:
        """The same of the averages."""
        yield from _buffer_slots(dict(named_averages(self.averages)))

    def average_slots(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every parameter and buffer of the averages."""
        for prefix, average in named_averages(self.averages):
            yield from ((_join(prefix, name), p) for name, p in average.named_parameters())
            yield from ((_join(prefix, name), b) for name, b in average.named_buffers())

    def optimizer_slots(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every tensor an optimizer keeps."""
        for optimizer in self.optimizers:
            for parameter, entry in optimizer.state.items():
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


class StateCopy:
    """A copy of a TrainingState (or of some optimizers' part of it) that can be put back bit for bit.

    Taking it again reuses the memory of the last time, so one StateCopy costs one copy of the state.
    """

    def __init__(
        self, state: TrainingState, device: str | None = None, optimizers: Sequence[Optimizer] | None = None
    ) -> None:
        self._state = state
        self._device = device
        self._only = optimizers
        self._store: dict[int, tuple[Tensor, Tensor]] = {}
        self._structure: list[Any] = []
        self._slots: list[tuple[nn.Module, str, Tensor | None]] = []
        self._schedulers: list[dict[str, Any]] = []
        self.valid = False

    def take(self) -> None:
        """Copy the state as it is now. Valid only once the copy is complete."""
        self.valid = False
        live = self._live_tensors()
        old, self._store = self._store, {}
        for tensor in live:
            kept = old.get(id(tensor))
            mine = kept[1] if kept is not None and kept[0] is tensor and _fits(kept[1], tensor) else None
            if mine is None:
                mine = torch.empty_like(tensor, device=self._device or tensor.device, requires_grad=False)
            self._store[id(tensor)] = (tensor, mine)
        del old
        with torch.no_grad():
            copy_all([pair[1] for pair in self._store.values()], [pair[0] for pair in self._store.values()])
        self._structure = [self._outline(optimizer) for optimizer in self._optimizers()]
        if self._only is None:
            self._slots = [(owner, key, owner._buffers[key]) for _, owner, key in self._state.buffer_slots()]
        self._schedulers = [copy.deepcopy(scheduler.state_dict()) for scheduler in self._state.schedulers]
        self.valid = True

    def restore(self) -> None:
        """Put everything back as it was when the copy was taken."""
        if not self.valid:
            raise RuntimeError("this copy of the training state is incomplete and cannot be restored")
        with torch.no_grad():
            copy_all([pair[0] for pair in self._store.values()], [pair[1] for pair in self._store.values()])
        for owner, key, tensor in self._slots:
            owner._buffers[key] = tensor
        for optimizer, outline in zip(self._optimizers(), self._structure, strict=True):
            for parameter in [p for p in optimizer.state if p not in outline["state"]]:
                del optimizer.state[parameter]
            for parameter, entry in outline["state"].items():
                optimizer.state[parameter] = _copy_entry(entry)
            for group, saved in zip(
                optimizer.param_groups, outline["groups"], strict=False
            ):  # added later: as it is
                for key in [key for key in group if key != "params" and key not in saved]:
                    del group[key]
                put_back_group(group, saved)
        for scheduler, saved in zip(self._state.schedulers, self._schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(saved))

    def _optimizers(self) -> Sequence[Optimizer]:
        return self._state.optimizers if self._only is None else self._only

    def _live_tensors(self) -> list[Tensor]:
        if self._only is None:
            return [tensor for _, _, tensor in self._state.tensors() if can_change(tensor)]
        tensors = [p for o in self._only for g in o.param_groups for p in g["params"]]
        for optimizer in self._only:
            for entry in optimizer.state.values():
                tensors.extend(value for value in entry.values() if isinstance(value, Tensor))
        return tensors

    @staticmethod
    def _outline(optimizer: Optimizer) -> dict[str, Any]:
        """Which entries exist and their plain values; tensors stand for themselves, `_store` has their content."""
        state = {parameter: _copy_entry(entry) for parameter, entry in optimizer.state.items()}
        return {"state": state, "groups": [copy_group(group) for group in optimizer.param_groups]}


def _copy_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors as they are, everything else (a list of tensors, too) copied: an optimizer changes it in place."""
    return {key: value if isinstance(value, Tensor) else copy.deepcopy(value) for key, value in entry.items()}


def copy_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a parameter group: rate, momentum and the rest."""
    return {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}


def put_back_group(group: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """A rate that is a tensor stays the same tensor: compiled and capturable steps hold on to it."""
    for key, value in saved.items():
        live = group.get(key)
        if isinstance(value, Tensor) and isinstance(live, Tensor) and live.shape == value.shape:
            with torch.no_grad():
                live.copy_(value)
        else:
            group[key] = copy.deepcopy(value)


def can_change(tensor: Tensor) -> bool:
    """Whether a step can write into it at all; what cannot change needs no copy, and could not take it back."""
    if tensor.is_meta or tensor.is_inference():
        return False
    if tensor.layout is not torch.strided:
        return True
    return all(
        step != 0 or size <= 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )  # expanded


def copy_all(destinations: list[Tensor], sources: list[Tensor]) -> None:
    """Copy many tensors in one fused call; sparse layouts, which it cannot take, one by one."""
    dense = [(d, s) for d, s in zip(destinations, sources, strict=True) if s.layout is torch.strided]
    if dense:
        torch._foreach_copy_([d for d, _ in dense], [s for _, s in dense])
    for destination, source in zip(destinations, sources, strict=True):
        if source.layout is not torch.strided:
            destination.copy_(source)


def _fits(mine: Tensor, live: Tensor) -> bool:
    return mine.shape == live.shape and mine.dtype == live.dtype and mine.layout == live.layout


Average = TypeVar("Average")


def named_averages(averages: Sequence[Average]) -> list[tuple[str, Average]]:
    """One is called "ema", several "ema0", "ema1"; the same for live modules and for what a checkpoint holds."""
    if len(averages) == 1:
        return [("ema", averages[0])]
    return [(f"ema{index}", average) for index, average in enumerate(averages)]


def _buffer_slots(models: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module, str]]:
    for prefix, model in models.items():
        for path, owner in model.named_modules():
            for key in owner._buffers:
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
