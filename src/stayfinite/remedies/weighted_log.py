"""p * log(p) where p may be 0: entropies and divergences of probabilities, without the logarithm of 0."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stayfinite.findings.mechanism.hidden import is_masked_difference
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.remedies.floors import smallest, smallest_normal
from stayfinite.remedies.remedy import Case, Prescription, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, is_pure, with_argument

_LOGS = ("log", "log2", "log10")
_LOGS_OF_LOGITS = ("log_softmax", "_log_softmax", "logsigmoid", "log_sigmoid_forward")
_NEAR = 12


class WeightedLog(Remedy):
    """p * log(p.clamp_min(tiny)) is 0 where p is 0, as its limit is; so is the gradient that reaches what made p.

    A logarithm that is made elsewhere (log_softmax of masked logits) is left out of the product where p is 0, and so
    is the difference of two of them where both are -inf.
    """

    name = "weighted-log"
    sentence = (
        "where p is 0 let p * log(p) be 0: a floor under the logarithm, or the logarithm left out there"
    )
    kinds = frozenset({Kind.LOG_OF_ZERO, Kind.ZERO_TIMES_INF})
    rank = 2

    def fits(self, case: Case) -> bool:
        return super().fits(case) or is_masked_difference(case.birth)

    def ways(self, case: Case) -> Iterator[Prescription]:
        """Far below healthy values; where some lie below that, at the smallest number of full precision."""
        if case.site is not None:
            for floor in (smallest(case), smallest_normal(case)):
                edits = tuple(_with_floor(case.site, floor))
                if edits:
                    yield Prescription(self, case.site.file, edits)
            filled = tuple(_filled(case)) if case.kind is Kind.ZERO_TIMES_INF else ()
            if filled:
                yield Prescription(self, case.site.file, filled)
            if is_masked_difference(case.birth) and case.site.torch:
                yield Prescription(self, case.site.file, tuple(_difference_filled(case.site)))


def _difference_filled(site: SourceSite) -> list[Edit]:
    """0 where both are -inf: p is 0 there, and the term of a divergence with it."""
    found: list[Edit] = []
    for node in site.operations("sub"):
        sides = (argument(node, site, 0), argument(node, site, 1, "other"))
        if not all(isinstance(side, ast.Name) for side in sides):
            continue
        one, other = (site.code(side) for side in sides if side is not None)
        both = f"{site.torch}.isneginf({one}) & {site.torch}.isneginf({other})"
        found.append(site.replace(node, f"({site.code(node)}).masked_fill({both}, 0.0)"))
    return found


def _with_floor(site: SourceSite, floor: str) -> list[Edit]:
    """Every logarithm on the line whose argument is a factor beside it."""
    found: list[Edit] = []
    for product in site.operations("mul"):
        factors = (argument(product, site, 0), argument(product, site, 1, "other"))
        for weight, other in (factors, factors[::-1]):
            if weight is None or other is None or not is_pure(weight):
                continue
            for node in _logarithms(other):
                inside = argument(node, site)
                if inside is None or site.code(inside) != site.code(weight):
                    continue
                text = with_argument(node, site, 0, f"{site.term(inside)}.clamp_min({floor})")
                if text is not None:
                    found.append(_inside(site, product, node, text))
    return found


def _filled(case: Case) -> list[Edit]:
    """The product of p and a name that holds -inf where a logarithm, made before this line, is that of 0."""
    site = case.site
    assert site is not None
    endless = [o for o in case.birth.operands if o.neginf and not o.posinf]
    if not any(o.made_by(*_LOGS, *_LOGS_OF_LOGITS, within=_NEAR) for o in endless):
        return []
    found: list[Edit] = []
    for product in site.operations("mul"):
        factors = (argument(product, site, 0), argument(product, site, 1, "other"))
        for number, (weight, other) in enumerate((factors, factors[::-1])):
            if weight is None or other is None or not is_pure(weight) or list(_logarithms(other)):
                continue
            if _place(case, number) in endless:
                text = f"{site.term(other)}.masked_fill({site.code(weight)} == 0, 0.0)"
                found.append(_inside(site, product, other, text))
    return found


def _place(case: Case, number: int) -> Operand | None:
    """What stands beside the factor of this number, among the operands of the birth."""
    operands = case.birth.operands
    return operands[1 - number] if len(operands) == 2 else None


def _inside(site: SourceSite, product: ast.expr, node: ast.expr, text: str) -> Edit:
    """The whole product with one part of it changed: it is what must not move, whatever the logarithm alone does."""
    (start, end), (inner, after) = site.span(product), site.span(node)
    return Edit(start, end, site.text[start:inner] + text + site.text[after:end])


def _logarithms(node: ast.expr) -> Iterator[ast.Call]:
    """A factor that is a logarithm, or a sum or difference of which one is a term."""
    if isinstance(node, ast.Call) and called(node) in _LOGS:
        yield node
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _logarithms(node.left)
        yield from _logarithms(node.right)
