"""The capsule of a refused step: its arguments, the state before it, random numbers and the source on its path."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
from torch import Tensor

from stayfinite.findings import Incident, Json
from stayfinite.guarding.attempt import Attempt
from stayfinite.prove import capsule
from stayfinite.recover.rng import RngState
from stayfinite.recover.state import TrainingState


def write_step_capsule(
    folder: Path, incident: Incident, attempt: Attempt, state: TrainingState, rng: RngState | None
) -> str | None:
    """Write it next to the incident; a sentence where something was left out or nothing could be kept."""
    calls = attempt.window.calls
    if not calls:
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
    path = {step.file for step in incident.path if step.file} | {file}
    facts: dict[str, Json] = {
        "kind": "step",
        "step": incident.step,
        "calls": told,
        "function": f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', '?')}",
        "python_random": [list(part) if isinstance(part, tuple) else part for part in before.python],
        "autocast": torch.is_autocast_enabled("cpu"),
        "scale": float(state.scaler.get_scale()) if state.scaler is not None else None,
        "training": {name: model.training for name, model in state.models.items()},
    }
    models: dict[str, Tensor] = {}
    for name, model in state.models.items():
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        models.update({f"{name}/{key}": tensor for key, tensor in own.items()})
    tensors = {"arguments": arguments, "random": {"torch": before.torch_cpu}, "models": models}
    left_out = capsule.write(folder, facts, tensors, sorted(one for one in path if one))
    return "; ".join(left_out) or None
