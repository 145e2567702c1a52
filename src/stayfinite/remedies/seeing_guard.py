"""A guard that sees NaN: `loss > limit` is False for NaN, `not loss <= limit` is True."""

from __future__ import annotations

import ast
import math
from typing import Final

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.run_record import Comparison
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit

_OPPOSITE: Final[dict[type[ast.cmpop], str]] = {ast.Gt: "<=", ast.GtE: "<", ast.Lt: ">=", ast.LtE: ">"}
_NAMES: Final[dict[type[ast.cmpop], str]] = {ast.Gt: "gt", ast.GtE: "ge", ast.Lt: "lt", ast.LtE: "le"}


class SeeingGuard(Remedy):
    """The script's own comparison, turned round: the same for every number, and it stops NaN."""

    name = "seeing-guard"
    sentence = "turn the guard's comparison round (`not loss <= limit`): it lets NaN pass as it is"
    kinds = frozenset(Kind)
    rank = 1
    universal = True  # a batch left out helps against anything
    leaves_steps_out = True

    def fits(self, case: Case) -> bool:
        """The script compared the bad value, and the answer was False."""
        return bool(_blind(case))

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in ast.walk(site.tree):
            if not isinstance(node, ast.If):
                continue
            for test in ast.walk(node.test):
                if isinstance(test, ast.Compare) and any(_is(test, one) for one in _blind(case)):
                    left, right = site.code(test.left), site.code(test.comparators[0])
                    text = f"not {left} {_OPPOSITE[type(test.ops[0])]} {right}"
                    whole = test is node.test
                    found.append(Edit(*site.span(test), text if whole else f"({text})", statement=True))
        return found


def _blind(case: Case) -> list[Comparison]:
    file = case.site.file if case.site is not None else None
    return [
        one
        for one in case.step.comparisons
        if not one.result and one.value is not None and math.isnan(one.value) and one.place.file == file
    ]


def _is(test: ast.Compare, seen: Comparison) -> bool:
    """This very comparison: its line, its operator, and its limit where that is written there."""
    if len(test.ops) != 1 or _NAMES.get(type(test.ops[0])) != seen.op or seen.place.line is None:
        return False
    if not test.lineno <= seen.place.line <= (test.end_lineno or test.lineno):
        return False
    limit = test.comparators[0]
    written = limit.value if isinstance(limit, ast.Constant) else None
    return not isinstance(written, (int, float)) or seen.threshold is None or written == seen.threshold
