"""Additive masks that add up beyond the dtype stay at its lowest number; a product with infinity becomes a where."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit


class FiniteMask(Remedy):
    """(a + b).clamp(min=lowest number): a masked position is masked once."""

    name = "finite-mask"
    sentence = "combine masks so that their sum stays finite"
    kinds = frozenset({Kind.MASK_OVERFLOW, Kind.MASK_OF_INFINITY})
    rank = 1

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        if not site.torch:
            return []
        found: list[Edit] = []
        if case.kind is Kind.MASK_OF_INFINITY:
            for node in site.operations("mul"):
                if not isinstance(node, ast.BinOp):
                    continue
                for mask, number in ((node.left, node.right), (node.right, node.left)):
                    if "inf" in site.code(number):
                        found.append(
                            site.replace(
                                node, f"{site.torch}.where({site.term(mask)} != 0, {site.code(number)}, 0.0)"
                            )
                        )
            return found
        sums = [n for n in site.operations("add") if isinstance(n, ast.BinOp)]
        for node in sums:
            if site.parents.get(node) not in sums:
                lowest = f"{site.torch}.finfo({site.torch}.{case.birth.dtype}).min"
                found.append(site.replace(node, f"({site.code(node)}).clamp(min={lowest})"))
        return found
