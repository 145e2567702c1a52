"""Gathers the facts of a training's start for the audit (see findings/subjects/setup.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings.subjects.setup import Group, HeldTensor, OptimizerSetup, Setup
from stayfinite.hooks import listen
from stayfinite.watch.finite import peak, summarize

ABSURD = 1e30
_MASK_LIKE = 1e37
"""Beyond this, a buffer's value is a mask (finfo.min and sums of it), not uninitialised memory."""


def examine_setup(
    tensors: Iterable[tuple[str, str, Tensor]],
    optimizers: Sequence[Optimizer],
    parameter_names: Mapping[Tensor, str],
    scaler: Any,
    loaded: Collection[str] = (),
) -> Setup:
    """The facts that are known before the first step. `loaded`: what a loaded state is known to have brought so."""
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return Setup(
        tensors=tuple(_suspicious(tensors, tuple(f".{name}" for name in loaded))),
        optimizers=tuple(_optimizer(optimizer) for optimizer in optimizers),
        unheld=tuple(name for p, name in parameter_names.items() if p.requires_grad and id(p) not in held),
        scaler=scaler is not None and scaler.is_enabled(),
    )


def _suspicious(tensors: Iterable[tuple[str, str, Tensor]], loaded: tuple[str, ...]) -> Iterator[HeldTensor]:
    everything = list(tensors)
    largest = peak(tensor for _, _, tensor in everything)
    if largest is None or bool(largest <= ABSURD):
        return
    for kind, name, tensor in everything:
        own = peak([tensor])
        if own is None or bool(own <= ABSURD):
            continue
        magnitude = tensor.detach().abs()
        absurd = (magnitude > ABSURD) & torch.isfinite(magnitude)
        if kind == "buffer":
            absurd &= magnitude < _MASK_LIKE
        yield HeldTensor(kind, summarize(name, tensor), int(absurd.sum()), f".{name}".endswith(loaded))


def _optimizer(optimizer: Optimizer) -> OptimizerSetup:
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        trained = [p for p in group["params"] if p.requires_grad]  # a frozen half backbone is never updated
        dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in trained})
        eps = group.get("eps")
        groups.append(
            Group(
                index=index,
                lr=float(group["lr"]) if "lr" in group else float("nan"),
                eps=float(eps) if isinstance(eps, (int, float)) else None,
                dtypes=tuple(dtypes),
            )
        )
    return OptimizerSetup(
        name=type(optimizer).__name__,
        adaptive=any(group.eps is not None for group in groups),
        keeps_master=not type(optimizer).__module__.startswith("torch.optim")
        or _has_float32_state(optimizer),
        groups=tuple(groups),
    )


def _has_float32_state(optimizer: Optimizer) -> bool:
    """Half parameters whose state is float32 of the same shape: the moments cannot underflow."""
    for parameter, entry in optimizer.state.items():
        if isinstance(parameter, Tensor) and parameter.dtype in (torch.float16, torch.bfloat16):
            shaped = [v for v in entry.values() if isinstance(v, Tensor) and v.shape == parameter.shape]
            if shaped and all(value.dtype is torch.float32 for value in shaped):
                return True
    return False


@contextmanager
def watch_autocast(device: str, seen: set[str]) -> Iterator[None]:
    """Note the dtypes of the autocast regions that are open or entered meanwhile. For the first step only.

    Listens to autocast itself: hooks on modules would make torch.compile warn and compile again.
    """

    def note(where: str) -> None:
        if torch.is_autocast_enabled(where):
            seen.add(str(torch.get_autocast_dtype(where)).removeprefix("torch."))

    def entering(enter: Any, region: Any) -> Any:
        result = enter(region)
        note(region.device)
        return result

    note(device)
    with listen("autocast", entering):
        yield
