"""A margin at the edge of the domain of acos, asin, atanh, erfinv and their like."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import margin
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, called, with_argument

_BOTH = ("acos", "asin", "atanh", "erfinv", "arccos", "arcsin", "arctanh")


class DomainMargin(Remedy):
    """atanh(x.clamp(-1 + eps, 1 - eps)): exact inside of the margin."""

    name = "domain-margin"
    sentence = "keep the argument a margin away from the edge of the domain"
    kinds = frozenset({Kind.INVERSE_AT_EDGE})
    rank = 2

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        eps = margin(case)
        found: list[Edit] = []
        for node in site.calls(*_BOTH, "acosh"):
            inside = argument(node, site)
            if inside is None:
                continue
            bounds = f"clamp_min(1 + {eps})" if called(node) == "acosh" else f"clamp(-1 + {eps}, 1 - {eps})"
            text = with_argument(node, site, 0, f"{site.term(inside)}.{bounds}")
            if text is not None:
                found.append(site.replace(node, text))
        return found
