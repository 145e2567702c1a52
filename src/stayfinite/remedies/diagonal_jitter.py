"""A little on the diagonal of a matrix that has no full rank, and its log determinant without the determinant."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.floors import margin
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, SourceSite, argument, called, with_argument

_DETERMINANTS = ("det",)
_FACTORED = ("cholesky", "cholesky_ex", "inv", "inverse")
_ENOUGH = "1e-4"  # rounding alone takes a matrix of ones 1e-6 below positive definite


class DiagonalJitter(Remedy):
    """torch.logdet(A + eps I): finite for a covariance of too few samples, and its gradient too."""

    name = "diagonal-jitter"
    sentence = (
        "add a little to the diagonal of a matrix that has no full rank (too few samples, two rows alike); for the "
        "logarithm of a determinant, use logdet"
    )
    kinds = frozenset({Kind.LOG_OF_ZERO, Kind.LOG_OF_NEGATIVE, Kind.DEGENERATE_DECOMPOSITION})
    rank = 2

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        found: list[Edit] = []
        for node in site.calls(*_FACTORED) if case.kind is Kind.DEGENERATE_DECOMPOSITION else ():
            matrix = argument(node, site)
            if matrix is not None and site.torch is not None:
                text = with_argument(node, site, 0, _raised(site, matrix, _ENOUGH))
                found += [site.replace(node, text)] if text is not None else []
        for node in site.calls("log", "logdet"):
            inside = argument(node, site)
            if called(node) == "log":
                of_determinant = isinstance(inside, ast.Call) and called(inside) in _DETERMINANTS
                inside = argument(inside, site) if inside is not None and of_determinant else None
            if inside is None or site.torch is None:
                continue
            found.append(site.replace(node, f"{site.torch}.logdet({_raised(site, inside, margin(case))})"))
        return found


def _raised(site: SourceSite, matrix: ast.expr, by: str) -> str:
    term = site.term(matrix)
    return f"{term} + {by} * {site.torch}.eye({term}.shape[-1], dtype={term}.dtype, device={term}.device)"
