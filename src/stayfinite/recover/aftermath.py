"""Aftermath: what a user's loop does to schedulers and averages after a step it does not know was refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import copy_all, copy_group, put_back_group
from stayfinite.recover.wrapped import optimizer_of


class Aftermath:
    """Taken at the refusal, put back at the end of the loop body: schedules and averages of these optimizers.

    The settings of an optimizer without a schedule that we know are its owner's: somebody sets them by hand.
    """

    def __init__(
        self, state: TrainingState, optimizers: Sequence[Optimizer], *, keep_scheduler: bool
    ) -> None:
        self.optimizers = list(optimizers)
        live = [tensor for average, _ in state.averages_of(optimizers) for tensor in _tensors(average)]
        self._averages = [(tensor, tensor.detach().clone()) for tensor in live]
        schedulers = state.schedulers_of(optimizers) if keep_scheduler else []
        self._schedulers = [(scheduler, copy.deepcopy(scheduler.state_dict())) for scheduler in schedulers]
        scheduled = [o for o in optimizers if any(optimizer_of(s) in (o, None) for s in schedulers)]
        self._groups = [(group, _finite(copy_group(group))) for o in scheduled for group in o.param_groups]

    def leave(self, scheduler: Any) -> None:
        """This schedule has nothing to do with the refused update: what it does stays."""
        optimizer = optimizer_of(scheduler)
        self._schedulers = [each for each in self._schedulers if each[0] is not scheduler]
        if not any(optimizer_of(kept) in (optimizer, None) for kept, _ in self._schedulers):
            own = [] if optimizer is None else [id(group) for group in optimizer.param_groups]
            self._groups = [each for each in self._groups if id(each[0]) not in own]

    def put_back(self) -> None:
        if self._averages:
            with torch.no_grad():
                copy_all([live for live, _ in self._averages], [saved for _, saved in self._averages])
        for group, saved in self._groups:
            put_back_group(group, saved)
        for scheduler, state in self._schedulers:
            scheduler.load_state_dict(copy.deepcopy(state))


def _tensors(average: nn.Module) -> list[Tensor]:
    return [*nn.Module.parameters(average), *average.buffers()]


def _finite(settings: dict[str, Any]) -> dict[str, Any]:
    """A learning rate of NaN is why the step was refused: nobody wants it back."""
    return {k: v for k, v in settings.items() if not (isinstance(v, float) and not math.isfinite(v))}
