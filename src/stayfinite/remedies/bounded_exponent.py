"""An exponent that is bounded: exp(x.clamp(max=...)), where no normalisation follows."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, with_argument

_LARGEST = {"float16": "10", "bfloat16": "40", "float32": "40", "float64": "300"}  # its square is finite, too


class BoundedExponent(Remedy):
    """exp(x.clamp(max=40)): healthy values stay; what is larger gets no gradient."""

    name = "bounded-exponent"
    sentence = "bound the exponent"
    kinds = frozenset({Kind.EXP_OVERFLOW, Kind.EXP_UNDERFLOW, Kind.POWER_OVERFLOW})
    rank = 6

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls("exp", "expm1", "cosh", "sinh"):
            inside = argument(node, site)
            if inside is None:
                continue
            top = _LARGEST.get(case.birth.dtype, "40")
            low = "-" + top + ", " if case.kind is Kind.EXP_UNDERFLOW else "max="
            text = with_argument(node, site, 0, f"{site.term(inside)}.clamp({low}{top})")
            if text is not None:
                found.append(site.replace(node, text))
        return found
