"""log of sums of exponentials, however the sum is written: over dims, of two terms, masked, chosen, by a matrix."""

from __future__ import annotations

import ast
from typing import Final, Protocol

from stayfinite.remedies.source import SourceSite, argument, called, is_pure, needs_parentheses

_LARGEST_EPS: Final = 1e-4
_NOTHING: Final = 'float("-inf")'  # the logarithm of a summand that is left out
_SUMS: Final = {"sum": "logsumexp", "cumsum": "logcumsumexp", "mean": "logsumexp"}
_PRODUCTS: Final = ("matmul", "mv", "mm", "bmm", "dot")
_JOINS: Final = ("cat", "concat", "stack")
_ZEROS: Final = ("zeros_like", "zeros", "new_zeros")


class Inner(Protocol):
    """What takes the logarithm of a summand."""

    def attempt(self, node: ast.expr) -> tuple[str, bool]:
        """log(node), and whether anything was gained by writing it so."""
        ...

    def behind(self, node: ast.expr) -> ast.expr:
        """What a name stands for."""
        ...


class LogSums:
    """Each method gives None where it would be no gain. `dims`: of the exponentials, if that is known."""

    def __init__(self, site: SourceSite, inner: Inner, dims: int | None) -> None:
        self._site, self._inner, self._dims = site, inner, dims
        self._torch = site.torch or "torch"

    def of_call(self, node: ast.Call) -> str | None:
        name = called(node)
        inside = argument(node, self._site)
        if inside is None or self._site.torch is None:
            return None
        if name in _SUMS:
            return self._of_sum(node, inside, name)
        if name == "masked_fill":
            return self._of_filled(node, inside)
        if name == "where" and len(node.args) == 3:
            return self._of_chosen(*node.args)
        if name in _PRODUCTS:
            other = argument(node, self._site, 1, "other")
            return self.of_product(inside, other) if other is not None else None
        if name in _JOINS and isinstance(inside, (ast.List, ast.Tuple)):
            return self._of_joined(node, inside)
        return None

    def _of_sum(self, node: ast.Call, inside: ast.expr, name: str) -> str | None:
        site = self._site
        text, gained = self._inner.attempt(inside)
        if not gained:
            return None
        dim = argument(node, site, 1, "dim") or next(
            (k.value for k in node.keywords if k.arg == "axis"), None
        )
        keep = argument(node, site, 2, "keepdim")
        given = f", keepdim={site.code(keep)}" if keep is not None and name != "cumsum" else ""
        if any(k.arg not in ("dim", "axis", "keepdim", "input") for k in node.keywords):
            return None
        if dim is None and name == "cumsum":
            return None
        over, summed = (site.code(dim), text) if dim is not None else ("0", f"{_grouped(text)}.flatten()")
        made = f"{self._torch}.{_SUMS[name]}({summed}, {over}{given})"
        if name != "mean":
            return made
        if not _is_pure(text) or isinstance(dim, (ast.Tuple, ast.List)):
            return None
        count = f"{_grouped(text)}.size({over})" if dim is not None else f"{_grouped(text)}.numel()"
        return f"{made} - {self._torch}.tensor(float({count})).log()"

    def _of_filled(self, node: ast.Call, inside: ast.expr) -> str | None:
        """exp(x).masked_fill(mask, 0): what is left out of the sum."""
        mask, value = argument(node, self._site, 1, "mask"), argument(node, self._site, 2, "value")
        if mask is None or value is None or not _is_zero(self._inner.behind(value)) or not is_pure(mask):
            return None
        text, gained = self._inner.attempt(inside)
        return f"{_grouped(text)}.masked_fill({self._site.code(mask)}, {_NOTHING})" if gained else None

    def _of_chosen(self, condition: ast.expr, one: ast.expr, other: ast.expr) -> str | None:
        """where(mask, exp(x), 0)."""
        if not is_pure(condition):
            return None
        sides, gains = [], []
        for side in (one, other):
            nothing = _is_zero(self._inner.behind(side))
            text, gained = (_NOTHING, False) if nothing else self._inner.attempt(side)
            sides.append(text)
            gains.append(gained)
        if not any(gains):
            return None
        return f"{self._torch}.where({self._site.code(condition)}, {sides[0]}, {sides[1]})"

    def _of_joined(self, node: ast.Call, items: ast.List | ast.Tuple) -> str | None:
        """cat([exp(a), exp(b)], 1): the logarithms joined."""
        made = [self._inner.attempt(item) for item in items.elts]
        if not any(gained for _, gained in made):
            return None
        (start, end), (inner, after) = self._site.span(node), self._site.span(items)
        return f"{self._site.text[start:inner]}[{', '.join(text for text, _ in made)}]{self._site.text[after:end]}"

    def of_product(self, left: ast.expr, right: ast.expr) -> str | None:
        """mask @ exp(x): every entry is a sum of exponentials with weights."""
        if self._dims is None or self._site.torch is None:
            return None
        (one, gained_left), (two, gained_right) = self._inner.attempt(left), self._inner.attempt(right)
        if not gained_left and not gained_right:
            return None
        vector = self._dims == 1
        if vector and gained_right:
            summed, dim = f"{one} + {_grouped(two)}", "-1"
        elif vector:
            summed, dim = f"{_grouped(one)}.unsqueeze(-1) + {_grouped(two)}", "-2"
        else:
            summed, dim = f"{_grouped(one)}.unsqueeze(-1) + {_grouped(two)}.unsqueeze(-3)", "-2"
        return f"{self._torch}.logsumexp({summed}, {dim})"

    def of_two(self, left: ast.expr, right: ast.expr) -> str | None:
        """log(a + b): an eps is not needed any more; a + (b - a) is b; else log(exp(log a) + exp(log b))."""
        for given, other in ((left, right), (right, left)):
            number = self._inner.behind(given)
            if _is_small(number):
                text, gained = self._inner.attempt(other)
                return text if gained else None
            if is_one(number):
                return self.of_one_plus(other)
            rest = self._inner.behind(other)
            same = isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.Sub)
            if same and isinstance(rest, ast.BinOp) and self._site.code(rest.right) == self._site.code(given):
                text, gained = self._inner.attempt(rest.left)
                return text if gained else None
        numbers = any(isinstance(self._inner.behind(side), ast.Constant) for side in (left, right))
        if self._site.torch is None or numbers:  # a number that is no eps keeps the sum from 0 already
            return None
        (one, gained), (two, gained_too) = self._inner.attempt(left), self._inner.attempt(right)
        return f"{self._torch}.logaddexp({one}, {two})" if gained or gained_too else None

    def of_one_plus(self, node: ast.expr) -> str | None:
        """log(1 + s) is softplus(log(s))."""
        if self._site.functional is None:
            return None
        text, gained = self._inner.attempt(node)
        return f"{self._site.functional}.softplus({text})" if gained else None

    def of_difference(self, left: ast.expr, right: ast.expr) -> str | None:
        """log(a - b) is log(a) + log(1 - b / a)."""
        if self._site.torch is None:
            return None
        (one, gained), (two, gained_too) = self._inner.attempt(left), self._inner.attempt(right)
        if not gained or not gained_too or not _is_pure(one) or not _is_pure(two):
            return None
        one, two = _grouped(one), _grouped(two)
        return f"{one} + {self._torch}.log(-{self._torch}.expm1({two} - {one}))"


def is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in (1, 1.0) and not isinstance(node.value, bool)


def _is_small(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value <= _LARGEST_EPS


def _is_zero(node: ast.expr) -> bool:
    """0, 0.0, zeros_like(x), and tensor(0.0)."""
    if isinstance(node, ast.Call) and called(node) in ("tensor", "as_tensor") and node.args:
        return _is_zero(node.args[0])
    if isinstance(node, ast.Call):
        return called(node) in _ZEROS
    return isinstance(node, ast.Constant) and node.value in (0, 0.0) and not isinstance(node.value, bool)


def _is_pure(text: str) -> bool:
    return is_pure(ast.parse(text, mode="eval").body)


def _grouped(text: str) -> str:
    return f"({text})" if needs_parentheses(text) else text
