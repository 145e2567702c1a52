"""Bad values that came in are replaced where they enter."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit


class Imputed(Remedy):
    """nan_to_num(x, nan=0, posinf=0, neginf=0) where x enters: every finite value stays."""

    name = "imputed"
    sentence = "replace NaN and Inf by 0 where they come in, before anything is computed with them"
    kinds = frozenset(
        {Kind.CAME_IN, Kind.HIDDEN, Kind.ZERO_TIMES_INF, Kind.CONSTANT_COLUMN, Kind.UNINITIALISED}
    )
    rank = 3
    universal = True

    def fits(self, case: Case) -> bool:
        return case.kind in self.kinds and case.birth.transition in (
            "deliberate",
            "outside",
            "uninitialised",
            "inf->nan",
        )

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        if not site.torch:
            return []
        for name in case.names:
            nodes = site.operations(name)
            if nodes:
                return [
                    site.replace(
                        n, f"{site.torch}.nan_to_num({site.code(n)}, nan=0.0, posinf=0.0, neginf=0.0)"
                    )
                    for n in nodes
                ]
        return []
