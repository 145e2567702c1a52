"""Looks through everything that lasts (parameters, buffers, moments, copies of models) for NaN and Inf."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from stayfinite.findings.subjects.failed_step import LargestWeight
from stayfinite.findings.subjects.run_record import StateTensor
from stayfinite.observers.optimizers import OptimizerObserver
from stayfinite.replay import Tracer
from stayfinite.replay.living import living_models
from stayfinite.replay.measure import magnitude, measurable
from stayfinite.replay.sites import place_at

_SHOWN = 64  # of each kind: a poisoned average must not hide that the weights are bad too


def scan(optimizers: OptimizerObserver, tracer: Tracer) -> tuple[StateTensor, ...]:
    """Every non-finite tensor of the training state, at most so many of each kind."""
    shown: dict[str, list[StateTensor]] = {}
    for found in _scan(optimizers, tracer):
        of_its_kind = shown.setdefault(found.owner, [])
        if len(of_its_kind) < _SHOWN:
            of_its_kind.append(found)
    return tuple(tensor for tensors in shown.values() for tensor in tensors)


def _scan(optimizers: OptimizerObserver, tracer: Tracer) -> Iterator[StateTensor]:
    trained: dict[int, str] = {}
    living = [w.optimizer() for w in optimizers.known.values()]
    stepping = [optimizer for optimizer in living if optimizer is not None]
    for optimizer in stepping:
        for group in optimizer.param_groups:
            trained.update({id(p): "" for p in group["params"]})
    for model in living_models():
        # A model none of whose parameters an optimizer knows is a copy: an average, a teacher, a target.
        parameters = list(model.named_parameters())
        copy = bool(trained) and not any(id(p) in trained for _, p in parameters)
        for name, parameter in parameters:
            trained[id(parameter)] = name
            yield from _bad("average" if copy else "parameter", name, parameter, tracer)
        for name, buffer in model.named_buffers():
            yield from _bad("average" if copy else "buffer", name, buffer, tracer)
    for optimizer in stepping:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if not trained[id(parameter)]:  # of no module: a list of tensors, a master copy
                yield from _bad("parameter", "parameter", parameter, tracer)
        for owned, state in optimizer.state.items():
            owner = trained.get(id(owned)) or "parameter"
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    yield from _bad("optimizer state", f"{owner}.{name}", value, tracer)


def _bad(owner: str, name: str, tensor: torch.Tensor, tracer: Tracer) -> Iterator[StateTensor]:
    if not measurable(tensor) or math.isfinite(magnitude(tensor)):
        return
    yield StateTensor(
        owner=owner,
        name=name,
        nan=int(torch.isnan(tensor).sum()),
        inf=int(torch.isinf(tensor).sum()),
        numel=tensor.numel(),
        place=place_at(tracer.written_at(tensor)),
        dtype=str(tensor.dtype).removeprefix("torch."),
    )


def largest_weight(tracer: Tracer) -> LargestWeight | None:
    """The largest parameter of all models there are."""
    found: LargestWeight | None = None
    for name, parameter in (pair for model in living_models() for pair in model.named_parameters()):
        if not measurable(parameter) or not math.isfinite(size := magnitude(parameter)):
            continue
        if found is None or size > found.magnitude:
            found = LargestWeight(name, size, place_at(tracer.written_at(parameter)))
    return found


def trained_parameters(optimizers: OptimizerObserver) -> list[torch.Tensor]:
    """What the optimizers of the script train, each once."""
    living = [optimizer for seen in optimizers.known.values() if (optimizer := seen.optimizer()) is not None]
    parameters = (p for optimizer in living for group in optimizer.param_groups for p in group["params"])
    return list(dict.fromkeys(parameters))
