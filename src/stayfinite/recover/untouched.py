"""A look at a run that leaves no trace: random numbers, training modes and buffers are put back, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from stayfinite.recover.rng import RngState
from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import can_change, copy_all
from stayfinite.shards import local


@contextmanager
def untouched(state: TrainingState) -> Iterator[None]:
    """Run the models in here, without gradients; afterwards it is as if nobody had."""
    modules = [module for top in _tops(state) for module in top.modules()]
    modes = [module.training for module in modules]
    slots = [(owner, dict(owner._buffers)) for owner in modules]
    live = {
        id(tensor): tensor
        for _, buffers in slots
        for tensor in buffers.values()
        if tensor is not None and can_change(tensor)
    }
    saved = [local(tensor).detach().clone() for tensor in live.values()]
    rng = RngState.capture()
    try:
        with torch.no_grad():
            yield
    finally:
        rng.restore()
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for owner, buffers in slots:
            for key in [key for key, _ in owner._buffers.items() if key not in buffers]:
                del owner._buffers[key]
            for key, tensor in buffers.items():
                owner._buffers[key] = tensor
        # .data: a graph that somebody keeps for a later backward pass must not find its buffers' version moved
        copy_all([tensor.data for tensor in live.values()], saved)
        # autocast keeps half copies of the weights; those made here would cut the next forward from its gradients
        torch.clear_autocast_cache()


def _tops(state: TrainingState) -> list[nn.Module]:
    return [*state.models.values(), *state.averages]
