"""StateCopy: a copy of the training state that can be put back bit for bit, into the same tensors."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.recover.state import TrainingState
from stayfinite.shards import local, state_of


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

    def take(self, but: Collection[Tensor] = ()) -> None:
        """Copy the state as it is now, `but` the content of some. Valid only once the copy is complete."""
        self.valid = False
        left_out = {id(tensor) for tensor in but}
        live = [tensor for tensor in self._live_tensors() if id(tensor) not in left_out]
        old, self._store = self._store, {}
        for tensor in live:
            kept = old.get(id(tensor))
            mine = kept[1] if kept is not None and kept[0] is tensor and _fits(kept[1], tensor) else None
            if mine is None:
                mine = torch.empty_like(
                    local(tensor), device=self._device or tensor.device, requires_grad=False
                )
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
            kept = state_of(optimizer)
            for parameter in [p for p in kept if p not in outline["state"]]:
                del kept[parameter]
            for parameter, entry in outline["state"].items():
                kept[parameter] = _copy_entry(entry)
            # added later: as it is
            for group, saved in zip(optimizer.param_groups, outline["groups"], strict=False):
                for key in [key for key in group if key != "params" and key not in saved]:
                    del group[key]
                put_back_group(group, saved)
        for scheduler, saved in zip(self._state.schedulers, self._schedulers, strict=self._only is None):
            scheduler.load_state_dict(copy.deepcopy(saved))

    def put_back(self, wanted: Sequence[Tensor]) -> list[Tensor]:
        """Put only these tensors back; gives those that the copy does not hold."""
        pairs = [self._store.get(id(tensor)) for tensor in wanted] if self.valid else [None] * len(wanted)
        known = [pair for pair in pairs if pair is not None]
        with torch.no_grad():
            copy_all([live for live, _ in known], [mine for _, mine in known])
        return [tensor for tensor, pair in zip(wanted, pairs, strict=True) if pair is None]

    @property
    def nbytes(self) -> int:
        """What it holds."""
        return sum(mine.nbytes for _, mine in self._store.values())

    def _optimizers(self) -> Sequence[Optimizer]:
        return self._state.optimizers if self._only is None else self._only

    def _live_tensors(self) -> list[Tensor]:
        if self._only is None:
            return [tensor for _, _, tensor in self._state.tensors() if can_change(tensor)]
        tensors = [p for o in self._only for g in o.param_groups for p in g["params"]]
        for optimizer in self._only:
            for entry in state_of(optimizer).values():
                tensors.extend(value for value in entry.values() if isinstance(value, Tensor))
        return tensors

    @staticmethod
    def _outline(optimizer: Optimizer) -> dict[str, Any]:
        """Which entries exist and their plain values; tensors stand for themselves, `_store` has their content."""
        state = {parameter: _copy_entry(entry) for parameter, entry in state_of(optimizer).items()}
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
    tensor = local(tensor)
    if tensor.is_meta or tensor.is_inference():
        return False
    if tensor.layout is not torch.strided:
        return True
    # elements of an expanded one share their memory
    return all(step != 0 or size <= 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


def copy_all(destinations: list[Tensor], sources: list[Tensor]) -> None:
    """Copy many tensors in one fused call; sparse layouts, which it cannot take, one by one. Of shards this rank's."""
    pairs = [(local(d), local(s)) for d, s in zip(destinations, sources, strict=True)]
    dense = [(d, s) for d, s in pairs if s.layout is torch.strided]
    if dense:
        torch._foreach_copy_([d for d, _ in dense], [s for _, s in dense])
    for destination, source in pairs:
        if source.layout is not torch.strided:
            destination.copy_(source)


def _fits(mine: Tensor, tensor: Tensor) -> bool:
    live = local(tensor)
    return mine.shape == live.shape and mine.dtype == live.dtype and mine.layout == live.layout
