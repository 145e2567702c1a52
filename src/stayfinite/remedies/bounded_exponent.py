"""An exponent that is bounded: exp(x.clamp(max=...)), where no normalisation follows."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import CLAMPS
from stayfinite.remedies.floors import largest_exponent
from stayfinite.remedies.remedy import Case, Prescription, Remedy
from stayfinite.remedies.source import Edit, argument, with_argument

_TIGHTER = {"float16": "5", "float64": "40"}  # so is the square of a gradient that it is a factor of
_TIGHTER_THAN_ALL = "10"
# where one exponential after the other multiplies the same values, as in the layers of a flow
_AS_A_FACTOR = "3"
# where a clamp takes what is larger: every number that the dtype holds stays as it is
_LIMIT = {"float16": "11.086", "float32": "88.72", "bfloat16": "88.5", "float64": "709.78"}


class BoundedExponent(Remedy):
    """exp(x.clamp(max=40)): healthy values stay; what is larger gets no gradient."""

    name = "bounded-exponent"
    sentence = "bound the exponent"
    kinds = frozenset({Kind.EXP_OVERFLOW, Kind.EXP_UNDERFLOW, Kind.POWER_OVERFLOW})
    rank = 6
    cuts_off = True

    def ways(self, case: Case) -> Iterator[Prescription]:
        """As loose as the dtype allows; tighter where what follows overflows: a squared gradient, the next layer."""
        if case.site is not None:
            dtype = case.birth.dtype
            tops = (largest_exponent(dtype), _TIGHTER.get(dtype, _TIGHTER_THAN_ALL), _AS_A_FACTOR)
            clamped = any(producer.name in CLAMPS for producer in case.birth.hidden_by)
            for top in (_LIMIT.get(dtype, "88.72"), *tops) if clamped else tops:
                edits = tuple(self._bounded_by(case, top))
                if edits:
                    yield Prescription(self, case.site.file, edits)

    def _bounded_by(self, case: Case, top: str) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls("exp", "expm1", "cosh", "sinh", "i0"):
            inside = argument(node, site)
            if inside is None:
                continue
            low = "-" + top + ", " if case.kind is Kind.EXP_UNDERFLOW else "max="
            text = with_argument(node, site, 0, f"{site.term(inside)}.clamp({low}{top})")
            if text is not None:
                found.append(site.replace(node, text))
        return found
