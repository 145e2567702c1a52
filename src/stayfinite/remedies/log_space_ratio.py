"""A ratio of exponentials as the exponential of a difference: exp(a) / (exp(a) + exp(b)), and no logarithm follows."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.logarithm import Logarithm
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument


class LogSpaceRatio(Remedy):
    """exp(log(numerator) - log(divisor)), both in log space: what overflows in both cancels before it can."""

    name = "log-space-ratio"
    sentence = "compute the ratio of exponentials from the difference of their logarithms, or with softmax"
    kinds = frozenset({Kind.EXP_OVERFLOW, Kind.EXP_UNDERFLOW})
    rank = 3  # behind a maximum that is subtracted: fewer changes

    def fits(self, case: Case) -> bool:
        within = "ratio" in case.step.narrows and "log" not in case.step.narrows
        return case.kind in self.kinds and (within or case.kind is Kind.EXP_UNDERFLOW)

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        if site.torch is None:
            return []
        found: list[Edit] = []
        kept: list[Edit] = []
        for node in _divisions(case, site):
            numerator, divisor = argument(node, site), argument(node, site, 1, "other")
            if numerator is None or divisor is None:
                continue
            above = Logarithm(site, node, kept)
            one = above.of(numerator)
            below = Logarithm(site, node, above.kept)
            two = below.of(divisor)
            if one is not None and two is not None:
                found.append(site.replace(node, f"{site.torch}.exp({one} - ({two}))"))
                kept = below.kept
        return [*found, *kept] if found else []

    def observed(self, case: Case) -> list[ast.expr]:
        """The quotient is what must not change."""
        return _divisions(case, case.site) if case.site is not None else []


def _divisions(case: Case, site: SourceSite) -> list[ast.expr]:
    """Those on the way of the bad value in this file."""
    lines = {s.line for s in case.step.path if s.line is not None and s.file == site.file and "div" in s.op}
    return [node for line in sorted({*lines, site.line}) for node in site.operations("div", line=line)]
