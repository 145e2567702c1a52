"""Probe: what a factory gives. A model, a batch (or a function or loader that makes batches), a loss, an optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Range: TypeAlias = "tuple[float, float]"

_OUTPUT_NAMES = {"output", "outputs", "out", "pred", "preds", "prediction", "predictions", "logits", "input",
                 "y_hat", "yhat", "y_pred", "scores"}  # fmt: skip


@dataclass(slots=True)
class Probe:
    """What is examined.

    `loss` is called as loss(model, batch). A module such as nn.CrossEntropyLoss(), a function of
    torch.nn.functional, or a function whose first parameter is called output, logits, pred... is called as
    loss(model(*inputs), target) with a batch of (*inputs, target). Without it the model's own loss is taken:
    model(**batch).loss, or what the model returns. `range` holds the bounds of the float inputs: one pair for all
    of them, or a dict by their names.
    """

    model: nn.Module
    batch: Any
    loss: Callable[..., Any] | None = None
    optimizer: Optimizer | Callable[[Any], Optimizer] | None = None
    range: Range | Mapping[str, Range] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(f"the model must be a torch.nn.Module; it is a {type(self.model).__name__}")
        if self.loss is not None and not callable(self.loss):
            raise TypeError(f"the loss must be a function; it is a {type(self.loss).__name__}")
        if (
            self.optimizer is not None
            and not isinstance(self.optimizer, Optimizer)
            and not callable(self.optimizer)
        ):
            raise TypeError(
                f"the optimizer must be a torch.optim.Optimizer or a function of the parameters; "
                f"it is a {type(self.optimizer).__name__}"
            )
        given = self.range
        for low, high in [] if given is None else given.values() if isinstance(given, Mapping) else [given]:
            if not low < high:
                raise ValueError(
                    f"the range {low:g}:{high:g} is empty: the first number must be the lower one"
                )

    def make_batch(self) -> Any:
        """A batch: the one given, a call of the function given, or the first that the loader hands out."""
        given = self.batch
        if isinstance(given, (Tensor, Mapping, list, tuple)) or hasattr(given, "__dataclass_fields__"):
            return given
        if callable(given):
            return given()
        if isinstance(given, Iterable):
            try:
                return next(iter(given))
            except StopIteration:
                raise ValueError("the loader given as batch is empty") from None
        return given


def as_probe(value: Any) -> Probe:
    """From what a factory may return: a Probe, a tuple (model, batch, loss, optimizer), or a dict with these keys."""
    if isinstance(value, Probe):
        return value
    names = [field.name for field in fields(Probe)]
    if isinstance(value, Mapping):
        given = {{"loss_fn": "loss", "criterion": "loss", "batch_fn": "batch"}.get(str(k), str(k)): v
                 for k, v in value.items()}  # fmt: skip
        unknown = sorted(set(given) - set(names))
        missing = [name for name in ("model", "batch") if name not in given]
        if unknown or missing:
            wrong = f"does not know {', '.join(unknown)}" if unknown else f"lacks {', '.join(missing)}"
            raise TypeError(f"the dict {wrong}; its keys are {', '.join(names)}")
        return Probe(**given)
    if isinstance(value, tuple) and 2 <= len(value) <= 4:
        return Probe(*value)
    shown = f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
    raise TypeError(
        f"it returned {shown}; return (model, batch, loss) or (model, batch, loss, optimizer), a dict with these "
        "keys, or a stayfinite.probe.Probe"
    )


def takes_output(loss: Callable[..., Any]) -> bool:
    """Whether a loss is called with the model's output and a target, rather than with model and batch."""
    if isinstance(loss, nn.Module):
        return True
    if getattr(loss, "__module__", "") in ("torch.nn.functional", "torch._C._nn") or inspect.isbuiltin(loss):
        return True
    try:
        first = next(iter(inspect.signature(loss).parameters), "")
    except (TypeError, ValueError):
        return False
    return first in _OUTPUT_NAMES


def call_loss(model: nn.Module, loss: Callable[..., Any] | None, batch: Any) -> Any:
    """One evaluation of the loss, by whichever convention applies."""
    if loss is not None and not takes_output(loss):
        return loss(model, batch)
    if loss is not None:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise TypeError(
                f"the loss {_name(loss)} compares an output with a target, so the batch must be (inputs, target); it "
                f"is a {type(batch).__name__}. Or give a function loss(model, batch)"
            )
        *inputs, target = batch
        first = inputs[0]
        output = model(**first) if len(inputs) == 1 and isinstance(first, Mapping) else model(*inputs)
        return loss(output, target)
    return own_loss(model(**batch) if isinstance(batch, Mapping) else
                    model(*batch) if isinstance(batch, (tuple, list)) else model(batch))  # fmt: skip


def own_loss(output: Any) -> Any:
    """The loss that a model returns: an attribute or key `loss`, or the output itself."""
    if isinstance(output, Mapping) and "loss" in output:
        found = output["loss"]
    else:
        found = getattr(output, "loss", output)
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, (torch.Tensor, Mapping)) or (
        isinstance(found, torch.Tensor) and found.numel() != 1
    ):
        raise TypeError(
            "no loss function was given and the model returned no loss; give one: loss(model, batch), or a criterion "
            "for a batch of (inputs, target)"
        )
    return found


def _name(loss: Callable[..., Any]) -> str:
    return getattr(loss, "__name__", type(loss).__name__)
