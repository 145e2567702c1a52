"""log(f(x)) for functions f that overflow or vanish long before their logarithm does."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

from stayfinite.remedies.source import SourceSite, argument, called

LN2: Final = "0.6931471805599453"
_ROOT2: Final = "1.4142135623730951"


def _cosh(x: str, torch: str, functional: str) -> str:
    return f"{x}.abs() + {functional}.softplus(-2 * {x}.abs()) - {LN2}"


_FORMS: Final[dict[str, Callable[[str, str, str], str]]] = {
    "i0": lambda x, torch, _: f"{torch}.log({torch}.special.i0e({x})) + {x}.abs()",
    "exp2": lambda x, torch, _: f"{LN2} * {x}",
    "ndtr": lambda x, torch, _: f"{torch}.special.log_ndtr({x})",
    "erfc": lambda x, torch, _: f"{torch}.special.log_ndtr(-{_ROOT2} * {x}) + {LN2}",
    "cosh": _cosh,
    "sinh": lambda x, torch, _: f"{x} + {torch}.log(-{torch}.expm1(-2 * {x})) - {LN2}",
}


def is_known(name: str, site: SourceSite) -> bool:
    """Whether the logarithm of the function of this name can be written in another form in this file."""
    return name in _FORMS and bool(site.torch) and (name != "cosh" or bool(site.functional))


def log_of(name: str, x: str, site: SourceSite) -> str:
    """The logarithm of a known function at `x` (a term: a name, a call, or in parentheses)."""
    return _FORMS[name](x, site.torch or "torch", site.functional or "F")


def log_of_one_minus(
    node: ast.expr, site: SourceSite, behind: Callable[[ast.expr], ast.expr]
) -> tuple[ast.expr, Callable[[str], str]] | None:
    """log(1 - node): the inner expression and the form, for tanh(u) ** 2 and exp(u). `behind` looks behind a name."""
    base = _squared(node, site)
    base = behind(base) if base is not None else None
    if isinstance(base, ast.Call) and called(base) == "tanh" and site.functional:
        inside, functional = argument(base, site), site.functional
        if inside is not None:
            return inside, lambda u: f"2 * ({LN2} - {u} - {functional}.softplus(-2 * {u}))"
    if isinstance(node, ast.Call) and called(node) == "exp" and site.torch:
        inside, torch = argument(node, site), site.torch
        if inside is not None:
            return inside, lambda u: f"{torch}.log(-{torch}.expm1({u}))"
    return None


def _squared(node: ast.expr, site: SourceSite) -> ast.expr | None:
    """What is squared: x ** 2, x.pow(2), torch.pow(x, 2), x.square()."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _is_two(node.right):
        return node.left
    if isinstance(node, ast.Call) and called(node) == "square":
        return argument(node, site)
    if isinstance(node, ast.Call) and called(node) == "pow" and _is_two(argument(node, site, 1, "exponent")):
        return argument(node, site)
    return None


def _is_two(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in (2, 2.0) and not isinstance(node.value, bool)
