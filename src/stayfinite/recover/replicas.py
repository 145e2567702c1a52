"""Replicas: what DistributedDataParallel holds on all ranks alike, weights and moments, and whether it is alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from stayfinite.recover.fingerprint import fingerprint
from stayfinite.recover.ranks import world_size
from stayfinite.recover.replicated_copy import Slot, can_be_kept_once, outline
from stayfinite.recover.state import TrainingState


@dataclass(frozen=True, slots=True)
class ReplicaNumbers:
    """What ranks tell each other before a copy; 0 where no copy follows."""

    order: int = 0  # names, shapes and kinds of the weights
    moments: int = 0  # the same of what optimizers keep of them, and its bits


class Replicas:
    """Asked before a copy. Moments may be a rank's own (ZeroRedundancyOptimizer, after `join()`), so bits decide."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        modules = (module for model in state.models.values() for module in model.modules())
        self._wrappers = [m for m in modules if isinstance(m, DistributedDataParallel)]

    def weights(self) -> list[Slot]:
        """Those that are still the model's, and are held by all ranks."""
        names = self._state.parameter_names
        everywhere = (w for w in self._wrappers if w.process_group.size() == world_size())
        held = dict.fromkeys(p for wrapper in everywhere for p in wrapper._module_parameters)
        return [(names[p], p) for p in held if p in names and can_be_kept_once(p)]

    def moments(self) -> list[Slot]:
        """In the order of the optimizers' groups: that of their state is the order of first updates."""
        names = {id(tensor): name for name, tensor in self._state.optimizer_slots()}
        weights = {id(tensor) for _, tensor in self.weights()}
        found: dict[int, Tensor] = {}
        for optimizer in self._state.optimizers:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                entry = optimizer.state.get(parameter, {}) if id(parameter) in weights else {}
                for _, value in sorted(entry.items(), key=lambda item: str(item[0])):
                    if isinstance(value, Tensor) and id(value) in names and can_be_kept_once(value):
                        found.setdefault(id(value), value)
        return [(names[number], tensor) for number, tensor in found.items() if number not in weights]

    def numbers(self) -> ReplicaNumbers:
        moments = self.moments()
        bits = (outline(moments) + fingerprint(tensor for _, tensor in moments)) % 2**63
        return ReplicaNumbers(outline(self.weights()), bits)

    def alike(self, fingerprints: Sequence[int], orders: Sequence[int], moments: Sequence[int]) -> list[Slot]:
        """What all ranks have alike, by what they told of their weights and moments."""
        if len(fingerprints) < 2 or len(set(fingerprints)) > 1 or len(set(orders)) > 1:
            return []
        return [*self.weights(), *(self.moments() if len(set(moments)) == 1 else [])]
