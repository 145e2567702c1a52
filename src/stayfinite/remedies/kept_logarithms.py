"""KeptLogarithms: what is made of exponentials and probabilities keeps its logarithm beside it, while entered.

A logarithm that is taken later, in whichever function, is then that one; and a ratio or a product that is not finite is
made of its logarithm (with `also_finite` every one, so that no gradient goes back through the factors). Nothing else is
changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid, softplus
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

_LARGEST_EPS: Final = 1e-4
_NOTHING: Final = float("-inf")
_SAME_VALUES: Final = frozenset({"gather", "squeeze", "unsqueeze", "diagonal", "diag", "view", "reshape", "flatten",
                                 "transpose", "permute", "t", "index_select", "take_along_dim", "select", "narrow",
                                 "expand", "contiguous", "__getitem__", "clone", "float", "to", "swapaxes", "view_as",
                                 "masked_select", "type", "double", "flip", "roll", "movedim", "expand_as",
                                 "detach", "T", "mT"})  # fmt: skip
_TO_LOG: Final = {"log": 1.0, "log2": 1 / math.log(2), "log10": 1 / math.log(10)}
_OPERATORS: Final = {
    "__mul__": "mul", "__rmul__": "mul", "multiply": "mul", "__imul__": "mul",
    "__add__": "add", "__radd__": "add", "__iadd__": "add",
    "__sub__": "sub", "subtract": "sub", "__rsub__": "rsub",
    "__truediv__": "div", "__div__": "div", "divide": "div", "true_divide": "div",
    "__rtruediv__": "rdiv", "__rdiv__": "rdiv",
    "__matmul__": "matmul", "mv": "matmul", "mm": "matmul", "bmm": "matmul",
}  # fmt: skip
_REMADE: Final = ("div", "rdiv", "reciprocal", "mul", "matmul")
_WRITING: Final = frozenset({"__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__"})


class _OfUnwritten:
    """A tensor for each tensor, forgotten when somebody writes into it, through whichever view."""

    def __init__(self) -> None:
        self._kept: Any = WeakIdKeyDictionary()

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._kept and self._kept[tensor][1] == tensor._version

    def __getitem__(self, tensor: Tensor) -> Tensor:
        kept: Tensor = self._kept[tensor][0]
        return kept

    def __setitem__(self, tensor: Tensor, kept: Tensor) -> None:
        if not tensor.is_inference():  # nobody counts the writes into those
            self._kept[tensor] = kept, tensor._version


class KeptLogarithms(TorchFunctionMode):
    """The logarithms of tensors, and of 1 minus them, as far as they are known."""

    def __init__(self, *, also_finite: bool = False) -> None:
        super().__init__()
        self._also_finite = also_finite
        self._logs = _OfUnwritten()
        self._of_rest = _OfUnwritten()  # log(1 - p)
        self._forms: dict[str, Callable[..., Tensor | None]] = {
            "exp": _exponent, "sigmoid": _of_sigmoid, "softmax": _of_softmax,
            "mul": self._product, "add": self._sum_of_two, "sub": self._difference, "div": self._quotient,
            "rdiv": lambda input, other: self._quotient(other, input), "reciprocal": partial(self._quotient, 1.0),
            "sum": self._sum, "mean": self._mean, "cumsum": self._running_sum, "prod": self._product_of_all,
            "matmul": self._matrix_product, "einsum": self._einsum, "masked_fill": self._filled,
            "where": self._chosen, "cat": partial(self._joined, torch.cat),
            "concat": partial(self._joined, torch.cat), "stack": partial(self._joined, torch.stack),
        }  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = getattr(func, "__name__", "")
        if written == "__get__":  # x.T
            written = getattr(getattr(func, "__self__", None), "__name__", "")
        writes = _writes(written)
        name = _OPERATORS.get(written, written.removesuffix("_") if writes else written)
        first = args[0] if args else kwargs.get("input")
        if self._knows(first) and name in _TO_LOG:
            return self._logs[first] if name == "log" else self._logs[first] * _TO_LOG[name]
        if self._knows(first) and name == "log1p":
            return softplus(self._logs[first])
        known = self._logarithm_of(name, first, func, args, kwargs)
        result = func(*args, **kwargs)
        if known is not None and name in _REMADE and not writes and self._to_remake(result):
            result = torch.exp(known)
        if isinstance(result, Tensor) and result.is_floating_point():
            if known is not None and known.shape == result.shape:
                self._logs[result] = known
            if isinstance(first, Tensor):
                self._note_rest(name, first, func, args, kwargs, result)
        return result

    def _to_remake(self, result: Tensor) -> bool:
        """Inf / Inf, 0 / 0 and 0 * Inf, of which the logarithms say what is meant."""
        return self._also_finite or not bool(torch.isfinite(result).all())

    def _logarithm_of(self, name: str, first: Any, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        """Of what this call will give; None where it is not known."""
        if name in _SAME_VALUES and self._knows(first):
            moved: Tensor = func(self._logs[first], *args[1:], **_without_input(kwargs))
            return moved
        if name == "rsub" and _number(args) == 1 and isinstance(first, Tensor) and first in self._of_rest:
            rest: Tensor = self._of_rest[first]
            return rest
        form = self._forms.get(name)
        return form(*args, **kwargs) if form is not None else None

    def _note_rest(self, name: str, first: Tensor, func: Any, args: Any, kwargs: Any, result: Tensor) -> None:
        rest = self._of_rest
        if name == "sigmoid":
            rest[result] = logsigmoid(-first)
        elif name == "rsub" and _number(args) == 1 and first in self._logs:
            rest[result] = self._logs[first]
        elif name in _SAME_VALUES and first in rest:
            rest[result] = func(rest[first], *args[1:], **_without_input(kwargs))

    def _knows(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value in self._logs

    def _log(self, value: Any) -> Tensor | None:
        """Of a value that may be no exponential: a mask, a weight, a number. None if it is negative somewhere."""
        if isinstance(value, (int, float)):
            return torch.tensor(math.log(value) if value > 0 else _NOTHING) if value >= 0 else None
        if not isinstance(value, Tensor) or value.is_complex():
            return None
        if value in self._logs:
            known: Tensor = self._logs[value]
            return known
        return torch.log(value) if bool((value >= 0).all()) else None

    def _two(self, one: Any, other: Any) -> tuple[Tensor, Tensor] | None:
        """The logarithms of both sides, if that of one is kept."""
        if not self._knows(one) and not self._knows(other):
            return None
        first, second = self._log(one), self._log(other)
        return None if first is None or second is None else (first, second)

    # -- the logarithms of what ops give -----------------------------------------------------------------

    def _product(self, input: Any, other: Any, **more: Any) -> Tensor | None:
        logs = self._two(input, other)
        return None if logs is None or more else logs[0] + logs[1]

    def _quotient(self, input: Any, other: Any, **more: Any) -> Tensor | None:
        logs = self._two(input, other)
        return None if logs is None or more else logs[0] - logs[1]

    def _sum_of_two(self, input: Any, other: Any, **more: Any) -> Tensor | None:
        if isinstance(other, float) and 0 < other <= _LARGEST_EPS and self._knows(input):
            return self._log(input)  # an eps is not needed where the logarithm cannot see a 0
        logs = self._two(input, other)
        return None if logs is None or more else torch.logaddexp(*logs)

    def _difference(self, input: Any, other: Any, **more: Any) -> Tensor | None:
        if not self._knows(input) or not self._knows(other) or more:
            return None
        one, two = self._logs[input], self._logs[other]
        rest: Tensor = one + torch.log(-torch.expm1(two - one))
        return rest

    def _sum(self, input: Any, *dims: Any, **more: Any) -> Tensor | None:
        if not self._knows(input):
            return None
        dim, keep = _over(dims, more)
        return torch.logsumexp(self._logs[input], tuple(range(input.dim())) if dim is None else dim, keep)

    def _mean(self, input: Any, *dims: Any, **more: Any) -> Tensor | None:
        total = self._sum(input, *dims, **more)
        return None if total is None else total - math.log(input.numel() / max(1, total.numel()))

    def _running_sum(self, input: Any, *dims: Any, **more: Any) -> Tensor | None:
        dim, _ = _over(dims, more)
        return torch.logcumsumexp(self._logs[input], dim) if self._knows(input) else None

    def _product_of_all(self, input: Any, *dims: Any, **more: Any) -> Tensor | None:
        dim, keep = _over(dims, more)
        return torch.sum(self._logs[input], dim, keep) if dim is not None and self._knows(input) else None

    def _matrix_product(self, input: Any, other: Any, **more: Any) -> Tensor | None:
        logs = self._two(input, other)
        if logs is None:
            return None
        one, two = logs
        if two.dim() == 1:
            return torch.logsumexp(one + two, -1)
        if one.dim() == 1:
            return torch.logsumexp(one.unsqueeze(-1) + two, -2)
        return torch.logsumexp(one.unsqueeze(-1) + two.unsqueeze(-3), -2)

    def _einsum(self, equation: Any, *operands: Any) -> Tensor | None:
        """Of two operands: each laid out over all letters, added, and summed over those that are not kept."""
        given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
        terms, arrow, kept = str(equation).replace(" ", "").partition("->")
        letters = terms.split(",")
        repeated = any(len(set(term)) != len(term) for term in letters)
        if len(given) != 2 or len(letters) != 2 or not arrow or "." in terms or repeated:
            return None
        logs = self._two(*given)
        if logs is None:
            return None
        every = kept + "".join(sorted(set("".join(letters)) - set(kept)))
        laid = [
            log.permute([term.index(c) for c in every if c in term])[
                tuple(slice(None) if c in term else None for c in every)
            ]
            for log, term in zip(logs, letters, strict=True)
        ]
        summed = tuple(range(len(kept), len(every)))
        total = laid[0] + laid[1]
        return torch.logsumexp(total, summed) if summed else total

    def _filled(self, input: Any, mask: Any, value: Any) -> Tensor | None:
        zero = isinstance(value, (int, float)) and value == 0
        return self._logs[input].masked_fill(mask, _NOTHING) if zero and self._knows(input) else None

    def _chosen(self, condition: Any, *sides: Any, **more: Any) -> Tensor | None:
        logs = self._two(*sides) if len(sides) == 2 else None
        return None if logs is None else torch.where(condition, *logs)

    def _joined(self, join: Any, tensors: Any, *dim: Any, **more: Any) -> Tensor | None:
        if not isinstance(tensors, (list, tuple)) or not any(map(self._knows, tensors)):
            return None
        logs = [log for one in tensors if (log := self._log(one)) is not None]
        joined: Tensor | None = join(logs, *dim, **more) if len(logs) == len(tensors) else None
        return joined


def _exponent(input: Tensor, **more: Any) -> Tensor | None:
    return input if input.is_floating_point() else None


def _of_sigmoid(input: Tensor, **more: Any) -> Tensor | None:
    return logsigmoid(input) if input.is_floating_point() else None


def _of_softmax(input: Tensor, *dim: Any, **more: Any) -> Tensor | None:
    return log_softmax(input, *dim[:1], **{key: value for key, value in more.items() if key == "dim"})


def _writes(name: str) -> bool:
    """Whether the function of this name writes into its first tensor."""
    dunder = name.startswith("__")
    return name == "__setitem__" or (dunder and name in _WRITING) or (not dunder and name.endswith("_"))


def _over(dims: tuple[Any, ...], more: dict[str, Any]) -> tuple[Any, bool]:
    """The dims of a sum and whether they are kept, as they were given: (1), (1, True), (0, 1), dim=, axis=."""
    keep = bool(more.get("keepdim", False))
    if len(dims) == 2 and isinstance(dims[1], bool):
        return dims[0], dims[1]
    if dims:
        return (dims[0] if len(dims) == 1 else dims), keep
    return more.get("dim", more.get("axis")), keep


def _without_input(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "input"}


def _number(args: Any) -> float | None:
    other = args[1] if len(args) > 1 else None
    return float(other) if isinstance(other, (int, float)) and not isinstance(other, bool) else None
