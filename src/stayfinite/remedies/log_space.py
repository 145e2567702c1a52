"""The logarithm computed from what is inside of it: log(softmax), log(sum(exp)), log(1 + exp)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import by_autograd
from stayfinite.findings.mechanism.rounded import rounded_by
from stayfinite.remedies.kept_logarithms import KeptLogarithms
from stayfinite.remedies.logarithm import Logarithm
from stayfinite.remedies.remedy import Case, Prescription, Remedy
from stayfinite.remedies.source import Edit, argument, called, needs_parentheses

_LOGS: Final = ("log", "log1p")
_NEAR: Final = 12


class LogSpace(Remedy):
    """log of a product, a sum of exponentials, a softmax or a sigmoid, without leaving log space."""

    name = "log-space"
    sentence = "compute the logarithm in log space, from what is inside of it"
    kinds = frozenset({
        Kind.LOG_OF_ZERO, Kind.LOG_OF_NEGATIVE, Kind.EPS_VANISHED, Kind.RATIO_INTO_LOG, Kind.EXP_OVERFLOW,
        Kind.EXP_UNDERFLOW, Kind.HALF_OVERFLOW, Kind.ZERO_TIMES_INF, Kind.SCALE_NOT_POSITIVE,
    })  # fmt: skip
    rank = 1

    def fits(self, case: Case) -> bool:
        """Also a logarithm that a `where` hides, if it is 0 that a smooth function was rounded to."""
        return super().fits(case) or (case.kind is Kind.HIDDEN and rounded_by(case.birth) is not None)

    def ways(self, case: Case) -> Iterator[Prescription]:
        """As one would write it; then along the values themselves, whichever functions they pass on their way."""
        yield from super().ways(case)
        if self.fits(case) and _of_exponentials(case):
            yield Prescription(_AlongTheValues(also_finite=by_autograd(case.birth)))

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        lines = {site.line, *(s.line for s in case.step.path if s.line is not None and s.file == site.file)}
        found: list[Edit] = []
        kept: list[Edit] = []
        for line in sorted(lines) if case.op not in _LOGS else [site.line]:
            for node in site.calls(*_LOGS, line=line):
                inside = argument(node, site)
                if inside is None:
                    continue
                logarithm = Logarithm(site, node, kept, dims=_dims(case))
                made = logarithm.of(inside) if called(node) == "log" else logarithm.of_one_plus(inside)
                if made is not None:
                    found.append(site.replace(node, f"({made})" if needs_parentheses(made) else made))
                    kept = logarithm.kept
        return [*found, *kept] if found else []


class _AlongTheValues(LogSpace):
    """The same, as no edit: where the exponential and the logarithm are in functions that do not see each other."""

    sentence = (
        "stay in log space from the exponentials to where their sum divides or its logarithm is taken; that changes "
        "several places, so it is shown on the replay and is no patch"
    )
    rank = 4  # behind what is a patch

    def __init__(self, *, also_finite: bool) -> None:
        self._also_finite = also_finite  # values were finite: it is their gradient that must not pass them

    def applied(self) -> AbstractContextManager[None]:
        return KeptLogarithms(also_finite=self._also_finite)


def _of_exponentials(case: Case) -> bool:
    """What the logarithm is taken of, or what is divided, was made of exponentials."""
    if case.kind is Kind.EXP_OVERFLOW:
        return case.op == "exp" and bool(case.step.narrows)
    return any(operand.made_by("exp", within=_NEAR) is not None for operand in case.birth.operands)


def _dims(case: Case) -> int | None:
    """How many dims the exponentials have, where one of them is the birth."""
    return len(case.birth.operands[0].summary.shape) if case.op == "exp" and case.birth.operands else None
