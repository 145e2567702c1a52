"""The capsule of a refused step: its arguments, the state before it, random numbers and the source on its path; for the
step of a watched loop, which has no arguments, how the script was started."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings import Incident, Json
from stayfinite.findings.jsonable import jsonable
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.process_start import started_script
from stayfinite.prove import capsule
from stayfinite.recover.rng import RngState
from stayfinite.recover.state import TrainingState


def write_step_capsule(
    folder: Path, incident: Incident, attempt: Attempt, state: TrainingState, rng: RngState | None
) -> str | None:
    """Write it next to the incident; a sentence where something was left out or nothing could be kept."""
    calls, started = attempt.window.calls, started_script()
    if not calls:
        if started is not None:
            capsule.write(folder, started, {}, sorted({*_on_the_path(incident), _main_file()}))
        return None
    before = rng or RngState.capture()
    arguments: dict[str, Tensor] = {}
    told: list[Json] = [capsule.plain(list(call.args), arguments) for call in calls]
    function = getattr(calls[0].fn, "__wrapped__", calls[0].fn)
    file = (
        inspect.getsourcefile(function)
        if inspect.isfunction(function) or inspect.ismethod(function)
        else None
    )
    path = _on_the_path(incident) | {file}
    facts: dict[str, Json] = {
        "kind": "step",
        "step": incident.step,
        "calls": told,
        "function": f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', '?')}",
        "python_random": [list(part) if isinstance(part, tuple) else part for part in before.python],
        "autocast": _autocast(state),
        "clip": attempt.clip,
        "optimizers": [_settings(optimizer) for optimizer in state.optimizers],
        "scale": float(state.scaler.get_scale()) if state.scaler is not None else None,
        "training": {name: model.training for name, model in state.models.items()},
        **({"script": started} if started is not None else {}),
    }
    models: dict[str, Tensor] = {}
    for name, model in state.models.items():
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        models.update({f"{name}/{key}": tensor for key, tensor in own.items()})
    tensors = {
        "arguments": arguments,
        "random": {"torch": before.torch_cpu},
        "models": models,
        "optimizer": _moments(state),
    }
    left_out = capsule.write(folder, facts, tensors, sorted(one for one in path if one))
    return "; ".join(left_out) or None


def _on_the_path(incident: Incident) -> set[str]:
    born = {incident.birth.file} if incident.birth is not None and incident.birth.file else set()
    return born | {step.file for step in incident.path if step.file}


def _main_file() -> str:
    return os.path.realpath(str(getattr(sys.modules["__main__"], "__file__", "")))


def _autocast(state: TrainingState) -> dict[str, Json]:
    """What the step function found around it; what it enters itself it enters again."""
    device = next(iter(state.parameter_names)).device.type
    dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return {"device": device, "enabled": torch.is_autocast_enabled(device), "dtype": dtype}


def _settings(optimizer: Optimizer) -> dict[str, Json]:
    """Its class and the plain numbers of its groups."""
    groups = [
        {
            key: float(value)
            for key, value in group.items()
            if isinstance(value, (int, float, Tensor)) and key != "params"
        }
        for group in optimizer.param_groups
    ]
    return {"kind": type(optimizer).__name__, "groups": jsonable(groups)}


def _moments(state: TrainingState) -> dict[str, Tensor]:
    """optimizer / number of the parameter / name -> what the optimizer keeps of it."""
    found: dict[str, Tensor] = {}
    for number, optimizer in enumerate(state.optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for index, parameter in enumerate(parameters):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[f"{number}/{index}/{key}"] = value
    return found
