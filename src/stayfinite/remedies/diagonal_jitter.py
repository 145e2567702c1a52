"""A little on the diagonal of a matrix that has no full rank, and its log determinant without the determinant."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import margin
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, called

_DETERMINANTS = ("det",)


class DiagonalJitter(Remedy):
    """torch.logdet(A + eps I): finite for a covariance of too few samples, and its gradient too."""

    name = "diagonal-jitter"
    sentence = (
        "add a little to the diagonal of the matrix (that of few samples has no full rank), and use logdet"
    )
    kinds = frozenset({Kind.LOG_OF_ZERO, Kind.LOG_OF_NEGATIVE, Kind.DEGENERATE_DECOMPOSITION})
    rank = 2

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls("log", "logdet"):
            inside = argument(node, site)
            if called(node) == "log":
                of_determinant = isinstance(inside, ast.Call) and called(inside) in _DETERMINANTS
                inside = argument(inside, site) if inside is not None and of_determinant else None
            if inside is None or site.torch is None:
                continue
            term = site.term(inside)
            eye = f"{site.torch}.eye({term}.shape[-1], dtype={term}.dtype, device={term}.device)"
            found.append(site.replace(node, f"{site.torch}.logdet({term} + {margin(case)} * {eye})"))
        return found
