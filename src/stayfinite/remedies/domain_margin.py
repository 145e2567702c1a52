"""A margin at the edge of a domain: of acos, asin, atanh, erfinv and their like, and of a distribution's support."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import margin, next_to_one
from stayfinite.remedies.remedy import Case, Prescription, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, with_argument

_BOTH = ("acos", "asin", "atanh", "erfinv", "arccos", "arcsin", "arctanh")
_FROM_ONE = ("acosh", "arccosh")


class DomainMargin(Remedy):
    """atanh(x.clamp(-1 + eps, 1 - eps)): exact inside of the margin."""

    name = "domain-margin"
    sentence = "keep the argument a margin away from the edge of the domain"
    kinds = frozenset({Kind.INVERSE_AT_EDGE})
    rank = 2

    def fits(self, case: Case) -> bool:
        """Also an observed value on the edge of a distribution's support: a logarithm inside of torch's log_prob."""
        return case.kind in self.kinds or (case.kind is Kind.LOG_OF_ZERO and _observed(case))

    def ways(self, case: Case) -> Iterator[Prescription]:
        """A margin that bounds the slope; where healthy values lie within that, the last number before the edge."""
        wide, least = margin(case), next_to_one(case)
        for eps, above in ((wide, wide), (least, f"2 * {least}")):  # above 1 numbers lie twice as far apart
            edits = tuple(self._with_margin(case, eps, above)) if case.site is not None else ()
            if edits and case.site is not None:
                yield Prescription(self, case.site.file, edits)

    def _with_margin(self, case: Case, eps: str, above: str) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls(*_BOTH, *_FROM_ONE):
            inside = argument(node, site)
            if inside is None:
                continue
            one_sided = called(node) in _FROM_ONE
            bounds = f"clamp_min(1 + {above})" if one_sided else f"clamp(-1 + {eps}, 1 - {eps})"
            text = with_argument(node, site, 0, f"{site.term(inside)}.{bounds}")
            if text is not None:
                found.append(site.replace(node, text))
        return found or _inside_of_the_support(case, site, eps)


def _observed(case: Case) -> bool:
    """What the logarithm is taken of was given, not computed by the model: nothing is learnt through it."""
    return case.operand is not None and not case.operand.learnt


def _inside_of_the_support(case: Case, site: SourceSite, eps: str) -> list[Edit]:
    """log_prob(x.clamp(eps, 1 - eps)), where the line calls one of torch's: its own code is not the script's."""
    if not _observed(case):
        return []
    bounds = f"clamp_min({eps})"
    if case.kind is Kind.INVERSE_AT_EDGE:
        bounds = f"clamp(-1 + {eps}, 1 - {eps})"  # the tanh of a normal distribution
    elif case.operand is not None and case.operand.made_by("rsub", within=2) is not None:
        bounds = f"clamp({eps}, 1 - {eps})"  # 1 - x is taken the logarithm of as well: Beta
    found: list[Edit] = []
    for node in site.calls("log_prob"):
        value = argument(node, site, 1, "value")
        text = with_argument(node, site, 1, f"{site.term(value)}.{bounds}") if value is not None else None
        if text is not None:
            found.append(site.replace(node, text))
    return found
