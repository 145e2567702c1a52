"""Finds the first op of a training run that makes a NaN or Inf out of finite inputs, and its phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Birth:
    op: str  # for example "aten.pow.Tensor_Scalar"
    phase: str  # forward, backward or optimizer
    node: str  # the backward node, empty outside of the backward pass


def is_bad(values: object) -> bool:
    """Whether any floating tensor among `values` holds a NaN or Inf."""
    tensors = [v for v in tree_leaves(values) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return any(not bool(torch.isfinite(t).all()) for t in tensors if t.numel())


class FirstNonFinite(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the first birth; ops that read uninitialised memory (`empty`) are no births."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.birth: Birth | None = None
        self.in_optimizer = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.birth is not None or "empty" in func.name():
            return func(*args, **kwargs)
        clean = not is_bad((args, kwargs))
        out = func(*args, **kwargs)
        if clean and is_bad(out):
            node = torch._C._current_autograd_node()
            phase = "optimizer" if self.in_optimizer else "backward" if node is not None else "forward"
            self.birth = Birth(str(func), phase, node.name() if node is not None else "")
        return out


@contextmanager
def find_birth(optimizer: torch.optim.Optimizer) -> Iterator[FirstNonFinite]:
    """Watch everything inside the block; ops of `optimizer.step` count as the optimizer phase."""
    mode = FirstNonFinite()

    def enter(*_: object) -> None:
        mode.in_optimizer = True

    def leave(*_: object) -> None:
        mode.in_optimizer = False

    hooks = [optimizer.register_step_pre_hook(enter), optimizer.register_step_post_hook(leave)]
    try:
        with mode:
            yield mode
    finally:
        for hook in hooks:
            hook.remove()


def first_bad_step(
    optimizer: torch.optim.Optimizer, step: Callable[[], object], limit: int
) -> tuple[int, Birth] | None:
    """Call `step` up to `limit` times; return the 1-based step of the first birth and the birth, or None."""
    with find_birth(optimizer) as mode:
        for number in range(1, limit + 1):
            step()
            if mode.birth is not None:
                return number, mode.birth
    return None
