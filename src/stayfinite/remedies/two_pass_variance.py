"""mean(x * x) - mean(x) ** 2, a difference of two large numbers, as the variance that torch computes in two passes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, is_method, is_pure

_DIMS = frozenset({"dim", "axis", "keepdim"})


class TwoPassVariance(Remedy):
    """x.var(unbiased=False): the same number, never below 0, and exact where the mean is large beside the spread."""

    name = "two-pass-variance"
    sentence = "compute the variance from the differences to the mean, not as a difference of two means"
    kinds = frozenset({Kind.ROOT_OF_NEGATIVE, Kind.ROOT_GRADIENT_AT_ZERO, Kind.LOG_OF_NEGATIVE, Kind.LOG_OF_ZERO,
                       Kind.DIVISION_BY_ZERO, Kind.CONSTANT_RESCALED, Kind.SCALE_NOT_POSITIVE})  # fmt: skip
    rank = 1
    ends_cancelling = True

    def fits(self, case: Case) -> bool:
        operand = case.operand
        return (
            case.kind in self.kinds and operand is not None and operand.made_by("sub", within=4) is not None
        )

    def edits(self, case: Case) -> list[Edit]:
        site, operand = case.site, case.operand
        if site is None or operand is None:
            return []
        lines = {p.line for p in operand.producers if p.name == "sub" and p.file == site.file and p.line}
        found: list[Edit] = []
        for line in sorted({site.line, *lines}):
            for node in site.operations("sub", line=line):
                variance = _variance(node, site)
                if variance is not None:
                    found.append(site.replace(node, variance))
        return found


def _variance(node: ast.expr, site: SourceSite) -> str | None:
    """Of a difference that is mean(x * x) - mean(x) ** 2, with names for any part of it."""
    first, second = argument(node, site), argument(node, site, 1, "other")
    if first is None or second is None:
        return None
    for squares, over in _means(_known(first, site), site):
        for values in _squared(_known(squares, site), site):
            for mean in _squared(_known(second, site), site):
                same = any(
                    site.code(one) == site.code(values) and dims == over
                    for one, dims in _means(_known(mean, site), site)
                )
                if same and is_pure(values):
                    return f"{site.term(values)}.var({over + ', ' if over else ''}unbiased=False)"
    return None


def _known(node: ast.expr, site: SourceSite) -> ast.expr:
    """What a name stands for, where that is certain."""
    return (site.assigned(node.id, node) or node) if isinstance(node, ast.Name) else node


def _means(node: ast.expr, site: SourceSite) -> Iterator[tuple[ast.expr, str]]:
    """What it is the mean of, and over which dims: "dim=0, keepdim=True"."""
    values = argument(node, site)
    if not isinstance(node, ast.Call) or called(node) != "mean" or values is None:
        return
    own = node.args[0 if is_method(node, site) else 1 :]
    given = {one.arg: site.code(one.value) for one in node.keywords if one.arg != "input"}
    if len(own) > 2 or not set(given) <= _DIMS:
        return
    given = {**dict(zip(("dim", "keepdim"), map(site.code, own), strict=False)), **given}
    given = {"dim" if name == "axis" else str(name): value for name, value in given.items()}
    yield values, ", ".join(f"{name}={given[name]}" for name in ("dim", "keepdim") if name in given)


def _squared(node: ast.expr, site: SourceSite) -> Iterator[ast.expr]:
    """What it is the square of: x * x, x ** 2, x.pow(2), torch.square(x)."""
    first, second = argument(node, site), argument(node, site, 1, "exponent")
    if first is None:
        return
    by_itself = second is not None and site.code(first) == site.code(second)
    by_two = isinstance(second, ast.Constant) and second.value == 2
    if isinstance(node, ast.BinOp):
        square = (isinstance(node.op, ast.Mult) and by_itself) or (isinstance(node.op, ast.Pow) and by_two)
    else:
        name = called(node) if isinstance(node, ast.Call) else ""
        square = name == "square" or (name == "pow" and by_two) or (name == "mul" and by_itself)
    if square:
        yield first
