"""Aftermath: what a user's loop does to schedulers and averages after a step it does not know was refused."""

from __future__ import annotations

import copy

import torch

from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import copy_all, copy_group, put_back_group


class Aftermath:
    """Taken at the refusal, put back at the end of the loop body."""

    def __init__(self, state: TrainingState, *, keep_scheduler: bool) -> None:
        self._state = state
        self._averages = [(live, live.detach().clone()) for _, live in state.average_slots()]
        self._schedulers = [copy.deepcopy(s.state_dict()) for s in state.schedulers] if keep_scheduler else []
        self._groups = [
            [copy_group(group) for group in o.param_groups]
            for o in (state.optimizers if keep_scheduler else [])
        ]

    def put_back(self) -> None:
        if self._averages:
            with torch.no_grad():
                copy_all([live for live, _ in self._averages], [saved for _, saved in self._averages])
        for optimizer, groups in zip(self._state.optimizers, self._groups, strict=False):
            for group, saved in zip(optimizer.param_groups, groups, strict=False):
                put_back_group(group, saved)
        for scheduler, state in zip(self._state.schedulers, self._schedulers, strict=False):
            scheduler.load_state_dict(state)
