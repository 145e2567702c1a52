"""A small slope along the diagonal, so that the values of a decomposition are distinct."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, is_pure, with_argument

_DECOMPOSITIONS = ("eigh", "svd", "eig")
_SPREAD = {"float64": "1e-8"}


class DistinctValues(Remedy):
    """eigh(A + diag(0 .. 1e-4)): a multiple of the identity would move all values alike and leave them equal."""

    name = "distinct-values"
    sentence = "add a small slope along the diagonal, so that no two values of the decomposition are equal"
    kinds = frozenset({Kind.DEGENERATE_DECOMPOSITION})
    rank = 3

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls(*_DECOMPOSITIONS):
            matrix = argument(node, site)
            if matrix is None or site.torch is None or not is_pure(matrix):
                continue
            term, torch = site.term(matrix), site.torch
            kind = f"dtype={term}.dtype, device={term}.device"
            slope = f"{torch}.linspace(0, {_SPREAD.get(case.birth.dtype, '1e-4')}, {term}.shape[-1], {kind})"
            eye = f"{torch}.eye({term}.shape[-2], {term}.shape[-1], {kind})"
            text = with_argument(node, site, 0, f"{term} + {eye} * {slope}")
            if text is not None:
                found.append(site.replace(node, text))
        return found
