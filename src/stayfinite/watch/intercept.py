"""Listening to an ordinary training loop: backward, clipping, optimizer and scaler steps, for as long as it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from stayfinite.hooks import Listening, listen, listen_to
from stayfinite.hooks.interrupts import interrupts_wait


class LoopListener(Protocol):
    """What the guard does at each of these moments."""

    def before_backward(self) -> Any:
        """Something to remember until the pass is over."""

    def saw_backward(self, roots: Sequence[Tensor], before: Any) -> Any: ...

    def saw_clip(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """The total norm if the listener has measured exactly these gradients, else None."""

    def wants_step(self, optimizer: Optimizer, step: Callable[..., Any], closure: Any) -> Any:
        """`step()` makes the step as it was called; with a closure, `step(other)` makes it with another one."""

    def wants_scaler_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any: ...

    def wants_scaler_update(self, update: Callable[[], None], *, forced: bool) -> None:
        """`forced`: to a scale that the loop has chosen itself."""


def intercept(listener: LoopListener, optimizers: Sequence[Optimizer], scaler: Any) -> Listening:
    """Call the listener for everything the loop does until this is stopped."""
    # threads; a `threading.local` in garbage makes Python 3.11 hang (hooks/updates.py)
    inside: set[int] = set()

    def backward(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        if thread in inside:  # reentrant checkpointing: a pass within a pass, on activations
            return original(tensors, *args, **kwargs)
        inside.add(thread)
        try:
            before = listener.before_backward()
            result = original(tensors, *args, **kwargs)
        finally:
            inside.discard(thread)
        listener.saw_backward(roots_of(tensors), before)
        return result

    def total_norm(original: Any, tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        if float(norm_type) == 2.0 and not isinstance(tensors, Tensor):
            tensors = list(tensors)
            measured = listener.saw_clip(tensors)
            strict = kwargs.get("error_if_nonfinite", args[0] if args else False)
            if measured is not None and not strict:
                return measured
        return original(tensors, norm_type, *args, **kwargs)

    def scaler_step(original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return listener.wants_scaler_step(optimizer, lambda: original(optimizer, *args, **kwargs))

    def scaler_update(original: Any, new_scale: Any = None) -> None:
        listener.wants_scaler_update(lambda: original(new_scale), forced=new_scale is not None)

    listening = Listening()
    try:
        with interrupts_wait():
            listening.add(listen("backward", backward))
            listening.add(listen("total_norm", total_norm))
            for optimizer in optimizers:
                listening.add(listen_to(optimizer, "step", around_step(listener, optimizer)))
            if scaler is not None and scaler.is_enabled():
                listening.add(listen_to(scaler, "step", scaler_step))
                listening.add(listen_to(scaler, "update", scaler_update))
    except BaseException:
        listening.stop()
        raise
    return listening


def around_step(listener: LoopListener, optimizer: Optimizer) -> Callable[..., Any]:
    """Brings the calls of an optimizer's `step` to the listener."""

    def step(original: Any, *args: Any, **kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[0] if args else None)
        if closure is None:
            return listener.wants_step(optimizer, lambda: original(*args, **kwargs), None)
        return listener.wants_step(optimizer, lambda given=closure: original(given), closure)

    return step


def roots_of(tensors: Any) -> list[Tensor]:
    """What backward was called on, each as one number."""
    roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    return [_one_number(root) for root in roots]


def _one_number(root: Tensor) -> Tensor:
    """A root with a gradient of its own (`out.backward(gradient)`) has no one value: its sum stands for it."""
    return root if root.numel() == 1 else root.detach().sum()


# -- which optimizers a backward pass reached

Marks = list[list[tuple[Tensor, int] | None]]


def has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def gradient_marks(optimizers: Sequence[Optimizer]) -> Marks:
    """The gradients there are, and how often each was written to."""
    return [
        [
            (gradient, gradient._version) if (gradient := p.grad) is not None else None
            for group in optimizer.param_groups
            for p in group["params"]
        ]
        for optimizer in optimizers
    ]


def reached(optimizers: Sequence[Optimizer], before: Marks) -> list[Optimizer]:
    """The optimizers that hold a parameter whose gradient has come or changed since."""
    return [
        optimizer for optimizer, marks in zip(optimizers, before, strict=True) if _changed(optimizer, marks)
    ]


def _changed(optimizer: Optimizer, marks: list[tuple[Tensor, int] | None]) -> bool:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    for parameter, mark in zip(parameters, marks, strict=False):
        gradient = parameter.grad
        if gradient is not None and (mark is None or gradient is not mark[0] or gradient._version != mark[1]):
            return True
    return False
