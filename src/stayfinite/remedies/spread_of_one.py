"""The deviation of a single value: Bessel's correction only where there are two."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, is_pure


class SpreadOfOne(Remedy):
    """std(correction=min(1, n - 1)): the same from two values on, 0 for one."""

    name = "spread-of-one"
    sentence = "take the deviation of a single value as 0 instead of dividing by n - 1 = 0"
    kinds = frozenset({Kind.SPREAD_OF_ONE})
    rank = 1

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls("std", "var", "std_mean", "var_mean"):
            values = argument(node, site)
            if (
                values is None
                or not is_pure(values)
                or any(k.arg in ("correction", "unbiased") for k in node.keywords)
            ):
                continue
            dim = argument(node, site, 1, "dim")
            if dim is not None and isinstance(dim, ast.Constant) and isinstance(dim.value, bool):
                continue
            size = (
                f"{site.term(values)}.numel()"
                if dim is None
                else f"{site.term(values)}.shape[{site.code(dim)}]"
            )
            call = site.code(node)[:-1].rstrip().rstrip(",")
            comma = "" if call.endswith("(") else ", "
            found.append(site.replace(node, f"{call}{comma}correction=min(1, {size} - 1))"))
        return found
