"""step_again: the step of a capsule once more, in this process, under the tracer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
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
    made = factory()
    if (
        not isinstance(made, tuple)
        or len(made) != 2
        or not isinstance(made[0], nn.Module)
        or not callable(made[1])
    ):
        raise WrongFactory("the function of --step must give (model, loss function)")
    model, loss_of = made
    _load(model, kept)
    if float32:
        model.float()
    _seed(kept)
    tracer = Tracer()
    loss: Tensor | None = None
    with tracer:
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
    failed = tracer.failure(loss, "loss") or tracer.failure()
    if failed is None:
        return None
    return to_incident(failed, explain(failed), {})


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
