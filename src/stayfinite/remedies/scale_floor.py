"""A floor under a scale, where it is made: variance, deviation, rate, concentration."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import margin
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit


class ScaleFloor(Remedy):
    """sigma.clamp_min(eps) where sigma is computed, so that its logarithm and its reciprocal are both finite."""

    name = "scale-floor"
    sentence = "put a floor under the scale where it is computed"
    kinds = frozenset({Kind.SCALE_NOT_POSITIVE, Kind.EXP_UNDERFLOW})
    rank = 3
    universal = True  # a floor upstream is another form of many a cure
    cuts_off = True

    def edits(self, case: Case) -> list[Edit]:
        site, operand = case.site, case.operand
        assert site is not None
        if operand is None or not operand.producers:
            return []
        made = operand.producers[0]
        if made.file != site.file or made.line is None:
            return []
        floor = margin(case)
        name = made.call.rpartition(".")[2].strip("_")
        if made.line == site.line and name in ("log", "div", "add", "mul", "sub", "sum", "mean"):
            return []
        return [
            site.replace(node, f"{site.term(node)}.clamp_min({floor})")
            for node in site.operations(name, line=made.line)[:1]
        ]
