"""A count of at least 1: a class that never occurs has a frequency, and a logarithm and reciprocal of it."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit

_COUNTS = ("bincount", "histc", "histogram")


class SmoothedCount(Remedy):
    """bincount(...).clamp_min(1): every class that occurs counts what it counted."""

    name = "smoothed-count"
    sentence = "count a class that never occurs as if it had occurred once"
    kinds = frozenset({Kind.FREQUENCY_ZERO, Kind.LOG_OF_ZERO, Kind.DIVISION_BY_ZERO})
    rank = 1
    universal = True  # a floor upstream is another form of many a cure

    def edits(self, case: Case) -> list[Edit]:
        site, operand = case.site, case.operand
        assert site is not None
        lines = {
            one.line
            for one in (operand.producers if operand is not None else ())
            if one.name in _COUNTS and one.file == site.file and one.line is not None
        }
        return [
            site.replace(node, f"{site.code(node)}.clamp_min(1)")
            for line in sorted(lines)
            for node in site.calls(*_COUNTS, line=line)
        ]
