"""Wrong use of the Guard is found before it does harm, and said with what to do about it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from stayfinite.recover.rates import flatten
from stayfinite.recover.state import TrainingState
from stayfinite.recover.wrapped import optimizer_of


def check_arguments(
    state: TrainingState,
    clip_norm: float | None,
    accumulate: int,
    sync: bool,
    scheduler_interval: str,
    probe: object = None,
    **numbers_of_steps: int,
) -> None:
    """Raise TypeError or ValueError with one sentence that names the argument."""
    if not state.optimizers:
        raise ValueError("Guard(optimizer=...) got no optimizer; pass the one that trains the model")
    for optimizer in state.optimizers:
        _check_optimizer(optimizer, state, sync)
    for parameter, name in state.parameter_names.items():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(
                f"parameter {name} has no size yet: run one forward pass before you make the Guard"
            )
    if clip_norm is not None and not (math.isfinite(clip_norm) and clip_norm > 0):
        raise ValueError(
            f"Guard(clip_norm={clip_norm}): a positive finite number is needed, or None not to clip"
        )
    if accumulate < 1:
        raise ValueError(f"Guard(accumulate={accumulate}): at least 1 micro-batch makes an update")
    if scheduler_interval not in ("step", "epoch"):
        raise ValueError(f"Guard(scheduler_interval={scheduler_interval!r}): choose 'step' or 'epoch'")
    if probe is not None and not callable(probe):
        raise TypeError(
            f"Guard(probe=...) takes a function that gives named values; got a {type(probe).__name__}"
        )
    for name, number in numbers_of_steps.items():
        if number < 0:
            raise ValueError(f"Guard({name}={number}): a positive number, or 0 for never")
    for scheduler in state.schedulers:
        if not hasattr(scheduler, "state_dict") or not hasattr(scheduler, "step"):
            raise TypeError(f"Guard(scheduler=...) takes torch schedulers; got a {type(scheduler).__name__}")
        if scheduler_interval == "step" and isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau needs a metric, so the guard cannot advance it: "
                "pass scheduler_interval='epoch' and call scheduler.step(metric) yourself"
            )
    for average in state.averages:
        if not isinstance(average, torch.nn.Module):
            raise TypeError(
                f"Guard(ema=...) takes modules such as AveragedModel; got a {type(average).__name__}"
            )


def _check_optimizer(optimizer: Optimizer, state: TrainingState, sync: bool) -> None:
    of_models = {id(p) for model in state.models.values() for p in torch.nn.Module.parameters(model)}
    if not any(id(p) in of_models for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            f"none of the parameters in {type(optimizer).__name__} belongs to the model: it is an optimizer of "
            "another model, or the model was rebuilt (moved, wrapped, deep-copied) after the optimizer was made"
        )
    fused = all(group.get("fused") for group in optimizer.param_groups)
    if not sync and not (fused and getattr(optimizer, "_step_supports_amp_scaling", False)):
        kind = type(optimizer).__name__
        instead = (
            f"{kind} of torch {torch.__version__} cannot;"
            if fused
            else f"make it {kind}(..., fused=True), or"
        )
        raise ValueError(
            f"Guard(sync=False) needs fused optimizers, which can skip on the device; {instead} leave sync=True"
        )


def chosen_optimizers(
    state: TrainingState, optimizer: Optimizer | Sequence[Optimizer] | None
) -> list[Optimizer]:
    """Those a step is for: all of them, or some of those that were given to the Guard."""
    if optimizer is None:
        return state.optimizers
    chosen = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    if any(each not in state.optimizers for each in chosen):
        raise ValueError("guard.step(optimizer=...) takes only optimizers that were given to the Guard")
    return chosen


def data_among(args: tuple[Any, ...]) -> Any:
    """What of a step function's arguments is data: neither a model nor an optimizer nor another function."""
    data = [a for a in args if not isinstance(a, (torch.nn.Module, Optimizer)) and not callable(a)]
    return data[0] if len(data) == 1 else tuple(data) or None


def unknown_schedule(state: TrainingState, scheduler_interval: str) -> str | None:
    """A sentence on optimizers with a scheduler that the guard was not given; once an epoch it is none of its business.

    torch marks the `step` of an optimizer that a scheduler was made for.
    """
    if scheduler_interval == "epoch":
        return None
    known = {id(optimizer_of(scheduler)) for scheduler in flatten(state.schedulers)}
    for optimizer in state.optimizers:
        if getattr(optimizer.step, "_wrapped_by_lr_sched", False) and id(optimizer) not in known:
            return (
                f"{type(optimizer).__name__} has a scheduler that the guard does not know: it is not held when a step "
                "is refused, and it is in no checkpoint. Pass it as Guard(scheduler=...); if you advance it once "
                "an epoch, pass scheduler_interval='epoch' too"
            )
    return None


def new_run_dir(below: Path = Path()) -> Path:
    """stayfinite-runs/20260131-235959, with a number behind it if that is taken; made now, so that it is nobody else's.

    No training makes folders of that name, so nothing of the user's is in it.
    """
    stem = below / "stayfinite-runs" / datetime.now().strftime("%Y%m%d-%H%M%S")
    for candidate in itertools.chain(
        [stem], (stem.with_name(f"{stem.name}-{n}") for n in itertools.count(2))
    ):
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # whoever writes to it says so, and what to do
            pass
        return candidate
    raise AssertionError("unreachable")


def own_run_dir(run_dir: Path, rank: int) -> Path:
    """Rank 0 writes to the run directory itself, every other rank to a folder of its own below it."""
    return run_dir / f"rank{rank}" if rank else run_dir
