"""A divisor that cannot be 0: a count of at least 1, a range or a deviation of at least an eps."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import margin
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, with_argument

_COUNTS = ("count", "sum of a mask", "a count")


class GuardedDivision(Remedy):
    """a / b.clamp(min=1) for a count, a / b.clamp_min(eps) for a size, a / where(b == 0, 1, b) for anything else."""

    name = "guarded-division"
    sentence = "guard the divisor: a count is at least 1, a size at least an eps"
    kinds = frozenset({
        Kind.DIVISION_BY_ZERO, Kind.CONSTANT_RESCALED, Kind.EMPTY_REDUCTION, Kind.FREQUENCY_ZERO, Kind.EXP_UNDERFLOW,
        Kind.ZERO_NORM, Kind.BOX_WITHOUT_SIZE, Kind.EPS_VANISHED, Kind.RATIO_INTO_LOG, Kind.SCALE_NOT_POSITIVE,
    })  # fmt: skip
    rank = 2

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.operations("div"):
            divisor = argument(node, site, 1, "other")
            if divisor is None or isinstance(divisor, ast.Constant):
                continue
            text = with_argument(node, site, 1, self._guarded(case, divisor))
            if text is not None:
                found.append(site.replace(node, text))
        return found

    def _guarded(self, case: Case, divisor: ast.expr) -> str:
        site, operand = case.site, case.operand
        assert site is not None
        term = site.term(divisor)
        if case.how.word in _COUNTS or (operand is not None and operand.is_integer):
            return f"{term}.clamp(min=1)"
        negative = operand is not None and operand.negatives > 0
        if site.torch and (negative or isinstance(divisor, (ast.Name, ast.Attribute))):
            code = site.code(divisor)
            return f"{site.torch}.where({code} == 0, {site.torch}.ones_like({code}), {code})"
        return f"{term}.clamp_min({margin(case)})"
