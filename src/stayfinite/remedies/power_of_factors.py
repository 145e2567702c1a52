"""A power of a product, factor by factor: the product underflows to 0 long before its fractional power does."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import smallest
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, is_pure


class PowerOfFactors(Remedy):
    """a**p * b**p for (a * b)**p, with a tiny floor under each: exact, and small factors still get a gradient."""

    name = "power-of-factors"
    sentence = "raise the factors to the power one by one: their product is 0 where its power is not"
    kinds = frozenset({Kind.ROOT_GRADIENT_AT_ZERO})
    rank = 1

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.here():
            base, exponent = _power(node, site)
            if not isinstance(base, ast.BinOp) or not isinstance(base.op, ast.Mult) or exponent is None:
                continue
            factors = (base.left, base.right)
            if not is_pure(exponent) or any(isinstance(one, ast.Constant) for one in factors):
                continue
            floor, power = smallest(case), site.term(exponent)
            text = " * ".join(f"{site.term(one)}.clamp_min({floor}) ** {power}" for one in factors)
            found.append(site.replace(node, f"({text})"))
        return found


def _power(node: ast.expr, site: SourceSite) -> tuple[ast.expr | None, ast.expr | None]:
    """What is raised, and to what; a whole power has a finite slope at 0."""
    base: ast.expr | None = None
    exponent: ast.expr | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = node.left, node.right
    elif isinstance(node, ast.Call) and called(node) == "pow":
        base, exponent = argument(node, site), argument(node, site, 1, "exponent")
    if isinstance(exponent, ast.Constant) and (not isinstance(exponent.value, float) or exponent.value >= 1):
        return None, None
    return base, exponent
