"""ExpressionRecord: the values of one expression, execution by execution, and whether its failing part still learns."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

LOOKS = "__stayfinite_value__"  # the name by which an edited source hands its value over
_BYTES_KEPT = 64 << 20
_NODES_WALKED = 20_000


class ExpressionRecord:
    """Keeps what an expression gave; given the failing places of the untouched run, asks what they depend on."""

    def __init__(
        self,
        failing: Sequence[Tensor | None] = (),
        quietly: Callable[[], AbstractContextManager[Any]] = nullcontext,
        names: Sequence[str] = (),
    ) -> None:
        self.inputs: dict[str, Any] = {}  # the names that were asked for, where the expression fails first
        self._names = names
        self.values: list[Tensor] = []
        self.learns: bool | None = None  # whether something trained gets a gradient from the failing places
        self._failing, self._quietly, self._bytes, self._count = failing, quietly, 0, 0

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            with self._quietly():
                if self._names and not self.inputs and self._fails_here(value):
                    self.inputs = _plain_values(self._names, sys._getframe(1))
                self._note(value)
        return value

    def _fails_here(self, value: Tensor) -> bool:
        where = self._failing[self._count] if self._count < len(self._failing) else None
        return where is not None

    def _note(self, value: Tensor) -> None:
        size = value.numel() * value.element_size()
        if self._bytes + size <= _BYTES_KEPT:
            self._bytes += size
            self.values.append(value.detach().cpu().clone())
        where = self._failing[self._count] if self._count < len(self._failing) else None
        self._count += 1
        if where is not None and value.requires_grad and where.shape == value.shape and self.learns is None:
            self.learns = _reaches_a_leaf(value, where.to(value.device))

    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """While entered, the edited source finds this record."""
        setattr(builtins, LOOKS, self)
        try:
            yield
        finally:
            delattr(builtins, LOOKS)


def _plain_values(names: Sequence[str], frame: FrameType) -> dict[str, Any]:
    """Tensors and numbers that the names stand for in a frame."""
    found: dict[str, Any] = {}
    for name in names:
        value = frame.f_locals.get(name, frame.f_globals.get(name))
        if isinstance(value, Tensor):
            found[name] = value.detach().cpu().clone().requires_grad_(value.requires_grad)
        elif isinstance(value, (bool, int, float)):
            found[name] = value
    return found


def looked_at(expression: str) -> str:
    """The expression, with its value handed over."""
    return f"{LOOKS}({expression})"


def _reaches_a_leaf(value: Tensor, where: Tensor) -> bool:
    """Whether the value at these places depends on anything that is trained, by a finite gradient that is not 0."""
    leaves = _leaves(value)
    # With equal weights a whole row of a softmax depends on nothing: its sum is 1, whatever is learnt.
    places = torch.arange(where.numel(), device=where.device, dtype=torch.float32).view(where.shape)
    uneven = where * (0.5 + places * 0.618034 % 1)
    # Where float16 is on the way a gradient of 1 may overflow, and that of the loss, which is smaller, does not.
    sizes = (1.0, 2.0**-12, 2.0**-24)
    return any(_some_reach(value, (uneven * size).to(value.dtype), leaves) for size in sizes)


def _some_reach(value: Tensor, seed: Tensor, leaves: tuple[Tensor, ...]) -> bool:
    if not leaves:
        return False
    gradients = _engine_run_backward(
        (value,), (seed,), True, False, leaves, allow_unreachable=True, accumulate_grad=False
    )
    return any(
        gradient is not None and bool(torch.isfinite(gradient).all()) and bool((gradient != 0).any())
        for gradient in gradients
    )


def _leaves(value: Tensor) -> tuple[Tensor, ...]:
    """Everything trained that the value was computed from."""
    found: dict[int, Tensor] = {}
    waiting, seen = [value.grad_fn], set[Any]()
    while waiting and len(seen) < _NODES_WALKED:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found[id(variable)] = variable
        waiting.extend(following for following, _ in node.next_functions)
    if not found and value.is_leaf and value.requires_grad:
        found[id(value)] = value
    return tuple(found.values())


def distortion(
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    failing: Sequence[Tensor | None],
    upto: int,
    noise: float = 0.0,
) -> float | None:
    """How far values that do not fail moved, relative to their size; None if nothing compares.

    `noise`: how far off they were before, which is nobody's doing.

    Executions are compared until the first that moved beyond rounding: a training that took another way from there
    on says nothing about the expression.
    """
    worst: float | None = None
    for old, new, bad in list(zip(before, after, failing, strict=False))[: upto + 1]:
        if old.shape != new.shape or not old.is_floating_point() or not new.is_floating_point():
            continue
        kept = torch.isfinite(old) if bad is None else torch.isfinite(old) & ~bad
        if not bool(kept.any()):
            continue
        one, two = old[kept].double(), new[kept].double()
        if not bool(torch.isfinite(two).all()):
            return float("inf")
        size = one.abs() + one.square().mean().sqrt()
        moved = torch.where(
            one == two, 0.0, ((one - two).abs() - noise).clamp_min(0.0) / size.clamp_min(1e-300)
        )
        rounding = 8 * torch.finfo(old.dtype).eps
        here = float(moved.max())
        worst = max(worst or 0.0, 0.0 if here <= rounding else here)
        if worst > 0.0:
            break
    return worst
