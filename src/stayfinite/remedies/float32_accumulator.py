"""A running sum in float32: the accumulator is widened where it begins."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit


class Float32Accumulator(Remedy):
    """s = start.float(): what is added to it in place is summed in float32."""

    name = "float32-accumulator"
    sentence = "sum in float32: widen the accumulator where it begins"
    kinds = frozenset({Kind.HALF_OVERFLOW})
    rank = 2
    only_wider = True

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        for node in ast.walk(site.tree):
            if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Name):
                continue
            if not node.lineno <= site.line <= (node.end_lineno or node.lineno):
                continue
            name = node.target.id
            begun = [
                one.value
                for one in ast.walk(site.scope(node))
                if isinstance(one, ast.Assign)
                and one.lineno <= node.lineno
                and any(isinstance(target, ast.Name) and target.id == name for target in one.targets)
            ]
            if begun:
                return [site.replace(begun[-1], f"{site.term(begun[-1])}.float()")]
        return []
