"""The double where: the unsafe place is replaced before the op as well, so that no gradient is computed there."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.rounded import rounded_by
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, called, is_of_numbers, is_pure, with_argument

_POSITIVE = ("log", "log2", "log10", "sqrt", "rsqrt", "pow", "log1p")
_EXPONENTIALS = ("exp", "expm1")
_SPREADS = ("std", "var", "std_mean", "var_mean")


class DoubleWhere(Remedy):
    """op(where(x is safe, x, 1)): exact wherever the op is defined, and no 0 x Inf in the gradient.

    So is the logarithm of a deviation that is 0 because a column of data never varies: it is left as large as it is.
    A floor under that would enlarge by as much as the floor is small whatever comes to vary there later.
    """

    name = "double-where"
    sentence = "replace the unsafe elements before the operation too, not only behind it"
    kinds = frozenset({Kind.HIDDEN, Kind.ROOT_GRADIENT_AT_ZERO})
    rank = 1

    def fits(self, case: Case) -> bool:
        """Not where the zeros are rounded: log(1) = 0 would be the loss of a sample that is not hidden, and wrong."""
        return (case.kind is Kind.HIDDEN and rounded_by(case.birth) is None) or _is_given_spread(case)

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        if not site.torch or rounded_by(case.birth) is not None:
            return []
        found: list[Edit] = []
        for node in site.here():
            unsafe: ast.expr | None = None
            index, condition = 0, "{x} > 0"
            if is_of_numbers(node, site):
                continue
            if isinstance(node, ast.Call) and called(node) in _POSITIVE:
                unsafe = argument(node, site)
                condition = "{x} > -1" if called(node) == "log1p" else condition
            elif isinstance(node, ast.Call) and called(node) in _EXPONENTIALS:
                unsafe = argument(node, site)
                condition = f"{{x}} < {11 if case.birth.dtype == 'float16' else 88}"  # what stays finite
            elif (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Pow)
                and not isinstance(node.right, ast.Constant)
            ):
                unsafe = node.left
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
                whole = isinstance(node.right, ast.Constant) and float(node.right.value) >= 1  # type: ignore[arg-type]
                unsafe = None if whole else node.left
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                unsafe, index, condition = node.right, 1, "{x} != 0"
            if unsafe is None or isinstance(unsafe, ast.Constant) or not is_pure(unsafe):
                continue
            x = site.code(unsafe)
            safe = f"{site.torch}.where({condition.format(x=site.term(unsafe))}, {x}, {site.torch}.ones_like({x}))"
            text = with_argument(node, site, index, safe)
            if text is not None:
                found.append(site.replace(node, text))
        return found


def _is_given_spread(case: Case) -> bool:
    """The logarithm of a deviation or range of data: nothing is learnt from how small it is."""
    operand = case.operand
    given = case.kind is Kind.LOG_OF_ZERO and operand is not None and not operand.learnt
    return given and operand is not None and operand.made_by(*_SPREADS, within=3) is not None
