"""An eps under the root: sqrt, norm, std and fractional powers get a bounded slope at 0."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import rounding_of_difference, under_root
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, with_argument

_DIVISIONS = frozenset({Kind.DIVISION_BY_ZERO, Kind.OPTIMIZER_DIVISION})


class EpsInside(Remedy):
    """sqrt(x.clamp_min(eps)), (x * x).sum().clamp_min(eps).sqrt() for a norm: exact for every healthy value."""

    name = "eps-inside"
    sentence = "put a floor under the root, not behind it"
    kinds = frozenset({Kind.ROOT_GRADIENT_AT_ZERO, Kind.ZERO_NORM, Kind.HIDDEN})
    rank = 2

    def fits(self, case: Case) -> bool:
        if case.kind is Kind.ROOT_OF_NEGATIVE:
            return _may_be_negative(case)
        # the root or the power is the divisor: rsqrt, x ** -0.5
        divides = case.kind in _DIVISIONS and case.op in ("rsqrt", "pow", "float_power")
        return case.kind in self.kinds or divides

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        if case.kind is Kind.ROOT_OF_NEGATIVE and not _may_be_negative(case):
            return []  # no cure, and no control either: it would hide any negative number
        found = _roots(site, site.here(), under_root(case))
        return found or (_under_divisors(case) if case.kind is Kind.ZERO_NORM else [])


def _roots(site: SourceSite, nodes: Iterable[ast.expr], eps: str) -> list[Edit]:
    texts = [(node, _with_eps(node, site, eps)) for node in nodes]
    return [site.replace(node, text) for node, text in texts if text is not None]


def _under_divisors(case: Case) -> list[Edit]:
    """The norm that divides here was given a name before: the floor goes under the root where it is taken."""
    site = case.site
    assert site is not None
    found: list[Edit] = []
    for node in site.operations("div"):
        divisor = argument(node, site, 1, "other")
        value = site.assigned(divisor.id, node) if isinstance(divisor, ast.Name) else None
        inner = [one for one in ast.walk(value) if isinstance(one, ast.expr)] if value is not None else []
        found += _roots(site, inner, under_root(case))
    return found


def _may_be_negative(case: Case) -> bool:
    """Rounding, or a value that the loss does not depend on: it is finite, so what was NaN has been left out of it
    (by a comparison, a choice), and only the gradient brings it back."""
    left_out = (
        case.step.trigger == "gradient" and case.birth.phase == "forward" and bool(case.birth.hidden_by)
    )
    return left_out or _by_rounding(case)


def _by_rounding(case: Case) -> bool:
    """A negative number that is only rounding away from 0; anything more is another mistake."""
    operand = case.operand
    if operand is None or operand.summary.min is None or not operand.absmax:
        return False
    return operand.summary.min > -max(1e-5 * max(1.0, operand.absmax), rounding_of_difference(operand))


def _with_eps(node: ast.expr, site: SourceSite, eps: str) -> str | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        if _is_whole(node.right) or isinstance(node.left, ast.Constant):
            return None
        return with_argument(node, site, 0, f"{site.term(node.left)}.clamp_min({eps})")
    if not isinstance(node, ast.Call):
        return None
    name, values = called(node), argument(node, site)
    if values is None:
        return None
    if name in ("sqrt", "rsqrt"):
        if isinstance(node.func, ast.Attribute) and site.code(node.func.value) in ("math", "np"):
            return None
        return with_argument(node, site, 0, f"{site.term(values)}.clamp_min({eps})")
    if name == "pow":
        exponent = argument(node, site, 1, "exponent")
        if exponent is None or _is_whole(exponent):
            return None
        return with_argument(node, site, 0, f"{site.term(values)}.clamp_min({eps})")
    if name == "std":
        start, _ = site.span(node)
        _, after = site.span(node.func)
        variance = site.text[start : after - 3] + "var" + site.text[after : site.span(node)[1]]
        return f"{variance}.clamp_min({eps}).sqrt()"
    if name in ("norm", "vector_norm"):
        return _norm(node, values, site, eps)
    if name == "hypot":
        other = argument(node, site, 1, "other")
        if other is None:
            return None
        return f"({site.term(values)}.square() + {site.term(other)}.square()).clamp_min({eps}).sqrt()"
    return None


def _norm(node: ast.Call, values: ast.expr, site: SourceSite, eps: str) -> str | None:
    """The Euclidean norm from its squares; any other order is left alone."""
    keywords = {k.arg: site.code(k.value) for k in node.keywords if k.arg not in ("input", "x")}
    given = [a for a in node.args if a is not values]
    order = site.code(given[0]) if given else keywords.pop("p", keywords.pop("ord", "2"))
    if order not in ("2", "2.0", '"fro"', "'fro'") or None in keywords:
        return None
    if len(given) > 1:
        keywords.setdefault("dim", site.code(given[1]))
    if len(given) > 2:
        keywords.setdefault("keepdim", site.code(given[2]))
    inside = ", ".join(f"{name}={value}" for name, value in keywords.items())
    return f"{site.term(values)}.square().sum({inside}).clamp_min({eps}).sqrt()"


def _is_whole(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and float(node.value).is_integer()
    )
