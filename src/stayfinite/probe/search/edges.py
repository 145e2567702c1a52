"""Where operations break: the operand of each risky op of a step's graph, and how far it is from its edge.

Read from the autograd graph of the loss: its nodes keep their operands, still connected to the inputs, so that the
distance can be differentiated with respect to the inputs, whatever library function the op is hidden in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_TINY = 1e-30
_MOST_NODES = 20000


@dataclass(frozen=True, slots=True)
class Target:
    """One risky operand. `distance` falls as it nears the edge; `key` is the same in the next pass."""

    key: str
    distance: Tensor  # one value an element
    to_zero: bool  # the edge is where the operand is 0, rather than far away


def _near_zero(value: Tensor) -> Tensor:
    return torch.log(value.abs() + _TINY)


def _far(value: Tensor) -> Tensor:
    return -torch.log(value.abs() + _TINY)


def _below(value: Tensor) -> Tensor:
    """For operands that may also cross zero: linear, so that nothing stops at the edge."""
    return value


_Measure = Callable[[Tensor], Tensor]
# node -> (saved operand, measure, edge at zero)
_EDGES: dict[str, tuple[tuple[str, _Measure, bool], ...]] = {
    "LogBackward0": (("self", _near_zero, True), ("self", _below, True)),
    "Log2Backward0": (("self", _near_zero, True), ("self", _below, True)),
    "Log10Backward0": (("self", _near_zero, True), ("self", _below, True)),
    "Log1PBackward0": (("self", lambda x: _near_zero(1 + x), True), ("self", _below, True)),
    "Log1pBackward0": (("self", lambda x: _near_zero(1 + x), True), ("self", _below, True)),
    "LogitBackward0": (("self", _near_zero, True), ("self", lambda x: _near_zero(1 - x), True)),
    "XlogyBackward0": (("other", _near_zero, True),),
    "DivBackward0": (("other", _near_zero, True),),
    "ReciprocalBackward0": (("result", _far, True),),
    "SqrtBackward0": (("result", _near_zero, True), ("self", _below, True)),
    "RsqrtBackward0": (("result", _far, True),),
    "ExpBackward0": (("result", _far, False),),
    "Exp2Backward0": (("result", _far, False),),
    "Expm1Backward0": (("result", _far, False),),
    "SinhBackward0": (("self", _far, False),),
    "CoshBackward0": (("self", _far, False),),
    "TanBackward0": (("result", _far, False),),
    "AcosBackward0": (("self", lambda x: -x.abs(), False),),
    "AsinBackward0": (("self", lambda x: -x.abs(), False),),
    "AtanhBackward0": (("self", lambda x: -x.abs(), False),),
    "AcoshBackward0": (("self", _below, False),),
    "ErfinvBackward0": (("self", lambda x: -x.abs(), False),),
    "LinalgVectorNormBackward0": (("result", _near_zero, True),),
    "NormBackward0": (("result", _near_zero, True),),
    "NormBackward1": (("result", _near_zero, True),),
    "StdBackward0": (("result", _near_zero, True),),
    "CdistBackward0": (("result", _near_zero, True),),
    "ProdBackward0": (("result", _near_zero, True),),
    "SoftmaxBackward0": (("result", _near_zero, False),),
    "SigmoidBackward0": (("result", _near_zero, False), ("result", lambda p: _near_zero(1 - p), False)),
    "LgammaBackward0": (("self", _near_zero, True),),
    "DigammaBackward0": (("self", _near_zero, True),),
    "Atan2Backward0": (("self", _near_zero, True), ("other", _near_zero, True)),
    "CumprodBackward0": (("result", _near_zero, True),),
    "LinalgInvExBackward0": (("inverse", _far, False),),
}  # fmt: skip


def targets(loss: Tensor) -> Iterator[Target]:
    """Every risky operand between the inputs and the loss, nearest to the loss first; last the loss itself."""
    seen: set[Any] = set()
    count: dict[str, int] = {}
    queue: list[Any] = [loss.grad_fn]
    while queue and len(seen) < _MOST_NODES:
        node = queue.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        queue += [parent for parent, _ in node.next_functions]
        name = node.name()
        number = count[name] = count.get(name, -1) + 1
        yield from _of_node(node, name, number)
    yield Target("loss", _far(loss).reshape(1), False)


def _of_node(node: Any, name: str, number: int) -> Iterator[Target]:
    edges = _EDGES.get(name, ())
    if name in ("PowBackward0", "PowBackward1"):
        exponent = _saved(node, "exponent")
        small = (isinstance(exponent, (int, float)) and 0 < exponent < 1) or isinstance(exponent, Tensor)
        negative = isinstance(exponent, (int, float)) and exponent < 0
        edges = (("self", _near_zero if small or negative else _far, small or negative),)
    for index, (operand, measure, to_zero) in enumerate(edges):
        value = _saved(node, operand)
        if isinstance(value, Tensor) and value.requires_grad and value.is_floating_point() and value.numel():
            yield Target(
                f"{name}/{number}/{index}",
                measure(value.float() if value.element_size() < 4 else value),
                to_zero,
            )
    if not edges:
        # Whatever computes in float16 can leave its range.
        for operand in ("self", "result", "mat1", "input"):
            value = _saved(node, operand)
            if (
                isinstance(value, Tensor)
                and value.dtype is torch.float16
                and value.requires_grad
                and value.numel()
            ):
                yield Target(f"{name}/{number}/half", _far(value.float()), False)
                return


def _saved(node: Any, operand: str) -> Any:
    try:
        return getattr(node, f"_saved_{operand}", None)
    except RuntimeError:  # changed in place since, or freed
        return None
