"""Listening to an ordinary training loop: backward, clipping, optimizer and scaler steps, for as long as it runs.

Nothing of the user's is replaced for good: every change is on an instance or module attribute and is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grad
from torch.optim import Optimizer


class Listener(Protocol):
    """What the guard does at each of these moments."""

    def saw_backward(self, roots: Sequence[Tensor]) -> None: ...

    def saw_clip(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """The total norm if the listener has measured exactly these gradients, else None."""

    def wants_step(self, optimizer: Optimizer, step: Callable[[], Any], closure: Any) -> Any: ...

    def wants_scaler_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any: ...


@contextmanager
def intercept(listener: Listener, optimizers: Sequence[Optimizer], scaler: Any) -> Iterator[None]:
    """Call the listener for everything the loop does while this is open."""
    with ExitStack() as undo:
        original_backward = torch.autograd.backward

        depth = 0

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                result = original_backward(tensors, *args, **kwargs)
            finally:
                depth -= 1
            if depth == 0:  # reentrant checkpointing calls backward within backward, on activations
                roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
                listener.saw_backward([_one_number(root) for root in roots])
            return result

        _replace(undo, torch.autograd, "backward", backward)

        if hasattr(clip_grad, "_get_total_norm"):  # torch >= 2.6; earlier the norm is read at the step
            original_norm = clip_grad._get_total_norm

            def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
                if float(norm_type) == 2.0 and not isinstance(tensors, Tensor):
                    tensors = list(tensors)
                    measured = listener.saw_clip(tensors)
                    strict = kwargs.get("error_if_nonfinite", args[0] if args else False)
                    if measured is not None and not strict:
                        return measured
                return original_norm(tensors, norm_type, *args, **kwargs)

            _replace(undo, clip_grad, "_get_total_norm", get_total_norm)

        for optimizer in optimizers:
            _replace(undo, optimizer, "step", _listening_step(listener, optimizer))
        if scaler is not None and scaler.is_enabled():
            original_scaler_step = scaler.step

            def scaler_step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
                return listener.wants_scaler_step(
                    optimizer, lambda: original_scaler_step(optimizer, *args, **kwargs)
                )

            _replace(undo, scaler, "step", scaler_step)
        yield


def _one_number(root: Tensor) -> Tensor:
    """A root with a gradient of its own (`out.backward(gradient)`) has no one value: its sum stands for it."""
    return root if root.numel() == 1 else root.detach().sum()


def _listening_step(listener: Listener, optimizer: Optimizer) -> Callable[..., Any]:
    original = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[0] if args else None)
        return listener.wants_step(optimizer, lambda: original(*args, **kwargs), closure)

    for mark in ("_wrapped_by_lr_sched",):  # lr_scheduler looks for its own mark and warns when it is gone
        if hasattr(original, mark):
            setattr(step, mark, getattr(original, mark))
    return step


def _replace(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute now and put the old one back when the loop ends."""
    had_own = name in vars(owner)
    old = vars(owner).get(name)
    setattr(owner, name, value)

    def put_back() -> None:
        if vars(owner).get(name) is value:  # somebody else may have wrapped it since; then leave theirs
            if had_own:
                setattr(owner, name, old)
            else:
                delattr(owner, name)

    undo.callback(put_back)
