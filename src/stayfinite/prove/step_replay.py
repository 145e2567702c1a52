"""step_again: the step of a capsule once more, in this process, under the tracer."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from stayfinite.findings import Incident
from stayfinite.findings.ranking import explain
from stayfinite.prove.capsule import Capsule, restored
from stayfinite.replay import Tracer
from stayfinite.replay.incident import to_incident


class WrongFactory(Exception):
    """What the factory gave cannot take the capsule's state."""


def step_again(
    kept: Capsule, factory: Callable[[], Any], *, float32: bool = False, sample: int | None = None
) -> Incident | None:
    """Put the state into the model that the factory gives, and compute the step. None if it is finite."""
    model, loss_of, optimizer = _parts(factory())
    _load(model, kept)
    if optimizer is not None:
        _load_optimizer(optimizer, kept)
    if float32:
        model.float()
    _seed(kept)
    tracer = Tracer()
    loss: Tensor | None = None
    with tracer, _autocast(kept, off=float32):
        for call in kept.facts["calls"]:
            arguments = restored(call, kept.tensors.get("arguments", {}), model)
            if sample is not None:
                arguments = _only(arguments, sample)
            if float32:
                arguments = tree_map(_wide, arguments)
            given = loss_of(*arguments)
            loss = given[0] if isinstance(given, tuple) else given
            if isinstance(loss, dict):
                loss = sum(loss.values())  # type: ignore[assignment]
            if not isinstance(loss, Tensor):
                raise WrongFactory("the loss function must give a tensor")
            loss.backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
    failed = tracer.failure(loss, "loss") or tracer.failure()
    if failed is None:
        return None
    failed = replace(failed, step=int(kept.facts.get("step", 0)))
    return to_incident(failed, explain(failed), {})


def _parts(made: Any) -> tuple[nn.Module, Callable[..., Any], Optimizer | None]:
    right = isinstance(made, tuple) and len(made) in (2, 3)
    right = right and isinstance(made[0], nn.Module) and callable(made[1])
    if not right or (len(made) == 3 and not isinstance(made[2], Optimizer)):
        raise WrongFactory(
            "the function of --step must give (model, loss function), or the optimizer as a third"
        )
    return made[0], made[1], made[2] if len(made) == 3 else None


def _load_optimizer(optimizer: Optimizer, kept: Capsule) -> None:
    """The first optimizer of the run: its rates and other numbers, and what it kept of every parameter."""
    told = (kept.facts.get("optimizers") or [{}])[0]
    if told.get("kind") != type(optimizer).__name__:
        raise WrongFactory(
            f"the optimizer is a {type(optimizer).__name__}; the capsule is of a {told.get('kind')}"
        )
    for group, saved in zip(optimizer.param_groups, told.get("groups", []), strict=False):
        group.update(
            {
                key: float(saved[key])
                for key in ("lr", "eps", "weight_decay", "momentum")
                if key in saved and key in group
            }
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, tensor in kept.tensors.get("optimizer", {}).items():
        number, _, rest = name.partition("/")
        index, _, key = rest.partition("/")
        if number != "0" or not index.isdecimal() or int(index) >= len(parameters):
            continue
        optimizer.state[parameters[int(index)]][key] = tensor.clone()


def _autocast(kept: Capsule, *, off: bool) -> AbstractContextManager[Any]:
    told = kept.facts.get("autocast")
    if off or not isinstance(told, dict) or not told["enabled"]:
        return nullcontext()
    return torch.autocast(told["device"], getattr(torch, told["dtype"]))


def _load(model: nn.Module, kept: Capsule) -> None:
    named = {name.partition("/")[2]: tensor for name, tensor in kept.tensors.get("models", {}).items()}
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if not named:
        raise WrongFactory("the capsule has no parameters: " + "; ".join(kept.facts.get("left_out", [])))
    missing = sorted(set(named) ^ set(own))
    if missing:
        raise WrongFactory(
            f"the model is another one than in the capsule: {missing[0]} is only in one of them"
        )
    with torch.no_grad():
        for name, tensor in named.items():
            if own[name].shape != tensor.shape:
                raise WrongFactory(
                    f"{name} is {tuple(own[name].shape)} here and {tuple(tensor.shape)} in the capsule"
                )
            own[name].data = tensor.clone()
    model.train(all(kept.facts.get("training", {}).values()))


def _seed(kept: Capsule) -> None:
    version, numbers, gauss = kept.facts["python_random"]
    random.setstate((version, tuple(numbers), gauss))
    state = kept.tensors.get("random", {}).get("torch")
    if state is not None:
        torch.set_rng_state(state)


def _only(arguments: Any, sample: int) -> Any:
    def one(leaf: Any) -> Any:
        return leaf[sample : sample + 1] if isinstance(leaf, Tensor) and leaf.dim() > 0 else leaf

    return [a if isinstance(a, nn.Module) else tree_map(one, a) for a in arguments]


def _wide(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
