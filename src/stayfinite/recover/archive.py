"""What a checkpoint holds, and how it is put back into a live run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stayfinite.recover.checkpoint import FORMAT, CheckpointError
from stayfinite.recover.rates import Rate, factors_to, rates_of, scale_rates
from stayfinite.recover.rng import RngState
from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import can_change


def pack(
    state: TrainingState, step: int, data: dict[str, Any], guard: dict[str, Any], rng: RngState
) -> dict[str, Any]:
    """Everything a run needs to go on as if it had never stopped."""
    return {
        "stayfinite": FORMAT,
        "model": {name: model.state_dict() for name, model in state.models.items()}
        if list(state.models) != [""]
        else state.models[""].state_dict(),
        "buffers": {name: owner._buffers[key] for name, owner, key in _unsaved_buffers(state)},
        "optimizers": [_plain(optimizer.state_dict()) for optimizer in state.optimizers],
        "schedulers": [_plain(scheduler.state_dict()) for scheduler in state.schedulers],
        "scaler": _plain(state.scaler.state_dict()) if state.scaler is not None else None,
        "ema": [average.state_dict() for average in state.averages],
        "rng": rng.to_saved(),
        "step": step,
        "data": data,
        "guard": guard,
    }


def _plain(value: Any) -> Any:
    """NumPy's numbers (a rate out of np.cos) as Python's: a checkpoint must be readable without running a pickle."""
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    return value


def unpack(
    payload: dict[str, Any], state: TrainingState, resume_lr: str, stage_factor: float = 1.0
) -> tuple[list[Rate], list[Rate]]:
    """Load a payload into the live objects; gives the rates of the present configuration and of the checkpoint.

    `stage_factor`: what the configured rates are to be multiplied by in the checkpoint's stage of a plan.
    """
    _check_counts(payload, state)
    _check_fit(payload, state)
    configured = [
        replace(rate, lr=rate.lr * stage_factor, peak=rate.peak * stage_factor)
        for rate in rates_of([optimizer.param_groups for optimizer in state.optimizers])
    ]
    for name, model in state.models.items():
        model.load_state_dict(payload["model"] if name == "" else payload["model"][name])
    for average, saved in zip(state.averages, payload["ema"], strict=True):
        average.load_state_dict(saved)
    for optimizer, saved in zip(state.optimizers, payload["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    _put_back_state_dtypes(payload, state)
    for name, owner, key in _unsaved_buffers(state):
        saved = payload["buffers"].get(name)
        live = owner._buffers[key]
        if saved is not None and live is not None and saved.shape == live.shape:
            live.copy_(saved)
    for scheduler, saved in zip(state.schedulers, payload["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    if state.scaler is not None and payload["scaler"]:
        state.scaler.load_state_dict(payload["scaler"])
    stored = rates_of([saved["param_groups"] for saved in payload["optimizers"]])
    if resume_lr == "config":
        now = rates_of([optimizer.param_groups for optimizer in state.optimizers])
        scale_rates(state.optimizers, state.schedulers, factors_to(now, configured, state.optimizers))
    RngState.from_saved(payload["rng"]).restore()
    return configured, stored


def _check_counts(payload: dict[str, Any], state: TrainingState) -> None:
    for what, have in (
        ("optimizers", state.optimizers),
        ("schedulers", state.schedulers),
        ("ema", state.averages),
    ):
        if len(payload[what]) != len(have):
            raise CheckpointError(
                f"the checkpoint holds {len(payload[what])} {what}, this guard has {len(have)}; "
                "construct the Guard with the same ones"
            )
    if (payload["scaler"] is None) != (state.scaler is None):
        side = (
            "the checkpoint has a scaler and this guard has none"
            if payload["scaler"]
            else "the checkpoint has none"
        )
        raise CheckpointError(
            f"loss scaler: {side}; a resume would start at another scale. Pass the same scaler."
        )


def _check_fit(payload: dict[str, Any], state: TrainingState) -> None:
    """Before anything is loaded: torch's own loading leaves a model half loaded when it finds that it does not fit."""
    problems = []
    for prefix, model in state.models.items():
        saved = payload["model"] if prefix == "" else payload["model"].get(prefix, {})
        live = model.state_dict()
        parameters = dict(model.named_parameters(remove_duplicate=False))
        problems += [f"{name} is missing" for name in live if name not in saved]
        problems += [f"{name} is not in the model" for name in saved if name not in live]
        problems += [
            f"{name} has shape {tuple(saved[name].shape)}, here {tuple(live[name].shape)}"
            for name in live
            if name in parameters and name in saved and saved[name].shape != live[name].shape
        ]
    for index, (optimizer, saved) in enumerate(zip(state.optimizers, payload["optimizers"], strict=True)):
        here, there = (
            [len(group["params"]) for group in groups]
            for groups in (optimizer.param_groups, saved["param_groups"])
        )
        if here != there:
            problems.append(f"optimizer {index} has groups of {there} parameters, here {here}")
        else:
            problems += _state_that_does_not_fit(index, optimizer, saved)
    for index, (scheduler, saved) in enumerate(zip(state.schedulers, payload["schedulers"], strict=True)):
        live = scheduler.state_dict()
        lost = [key for key in ("last_epoch", "base_lrs") if key in live and key not in saved]
        problems += [f"scheduler {index} has no {key} in the checkpoint" for key in lost]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(
            f"the checkpoint does not fit the present model or optimizer: {'; '.join(problems[:3])}{more}. "
            "Build them as in the run that saved it; nothing was loaded."
        )


def _state_that_does_not_fit(index: int, optimizer: Any, saved: dict[str, Any]) -> list[str]:
    """torch loads moments of any shape, and the next step fails on them or spreads them over the weights."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    order = [number for group in saved["param_groups"] for number in group["params"]]
    shapes = dict(zip(order, (p.shape for p in parameters), strict=True))
    entries = {number: entry for number, entry in saved["state"].items() if number in shapes}
    problems = [
        f"optimizer {index} holds {key} of another shape than its parameter, {tuple(shapes[number])}"
        for number, entry in entries.items()
        for key, value in entry.items()
        if key in _MOMENTS and value is not None and getattr(value, "shape", None) != shapes[number]
    ]
    moments = {key for entry in entries.values() for key in entry if key in _MOMENTS}
    problems += [
        f"optimizer {index} lacks {key} of parameter {number}"
        for number, entry in entries.items()
        for key in sorted(moments - entry.keys())
    ]
    for live, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        problems += [
            f"optimizer {index} lacks {key}" for key in _SETTINGS if key in live and key not in group
        ]
    return problems


_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg")
_SETTINGS = ("lr", "betas", "momentum", "eps", "weight_decay", "alpha", "rho")


def _unsaved_buffers(state: TrainingState) -> list[tuple[str, torch.nn.Module, str]]:
    """Buffers that state_dict leaves out, but a run may change."""
    return [
        (name, owner, key)
        for name, owner, key in (*state.buffer_slots(), *state.average_buffer_slots())
        if key in owner._non_persistent_buffers_set
        and (tensor := owner._buffers[key]) is not None
        and can_change(tensor)
    ]


def _put_back_state_dtypes(payload: dict[str, Any], state: TrainingState) -> None:
    """torch casts loaded moments to the parameter's dtype; a float32 moment of a half parameter must stay float32."""
    for optimizer, saved in zip(state.optimizers, payload["optimizers"], strict=True):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        order = [index for group in saved["param_groups"] for index in group["params"]]
        for parameter, index in zip(parameters, order, strict=True):
            for key, value in saved["state"].get(index, {}).items():
                live = optimizer.state[parameter].get(key)
                if isinstance(value, Tensor) and isinstance(live, Tensor) and live.dtype != value.dtype:
                    optimizer.state[parameter][key] = value.to(live.device)
