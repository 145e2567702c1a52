"""NUM020: a matrix decomposition at repeated or zero singular values."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import first_line, judged, only_an_error, told, told_by_error

_ERRORS = (
    "linalg.",
    "singular",
    "not positive-definite",
    "positive definite",
    "failed to converge",
    "ill-conditioned",
)

_FIX = "add jitter to the diagonal (x + 1e-4 * torch.eye(n)), or use float64 for this op"
_FIX_OF_EQUAL_VALUES = (
    "use svdvals or eigvalsh if only the values matter, else make them distinct: "
    "x + torch.diag(torch.linspace(0, 1e-4, n))"
)


class DegenerateDecomposition(Rule[FailedStep]):
    """A decomposition or inverse was taken (or differentiated) of a matrix with repeated or zero singular values.

    ## What it finds
    Bad values born in svd, eigh, qr, cholesky, inverse, solve or determinant, forward or backward, and the errors
    that these raise for finite but singular matrices.

    ## Why it is bad
    The backward formula of singular vectors divides by differences of singular values: 0 for a multiple of the
    identity, for rank-deficient batches, for symmetric starting points. The forward pass is fine.

    ## Example
    `U, S, V = torch.linalg.svd(x); loss = (U @ V).sum()` for x = identity

    ## The fix
    If only the values matter use `torch.linalg.svdvals` or `eigvalsh`; for vectors make the values distinct:
    `x + torch.diag(torch.linspace(0, 1e-4, n))`; for an inverse, a determinant or Cholesky add a small jitter
    `1e-4 * torch.eye(n)` to the diagonal; use float64 for this one op.

    ## The popular fix that does not work
    Clipping the gradient: it is NaN, not large. A multiple of the identity under eigh or svd: all values move alike,
    and those that were equal stay equal.

    ## References
    pytorch/pytorch#49886, tensorflow/tensorflow#17476
    """

    code = "NUM020"
    name = "degenerate-decomposition"
    cause = "LINALG_DEGENERATE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.DEGENERATE_DECOMPOSITION):
            gap = born.birth.facts.get("smallest_gap")
            of_values = any(name in behind(born.birth) for name in ("eigh", "svd", "eig"))
            seen = f", smallest gap of its values {gap:.2g}" if isinstance(gap, (int, float)) else ""
            yield self.finding(
                f"{behind(born.birth)} of a degenerate matrix{seen}"
                + (": its gradient divides by zero" if born.birth.phase == "backward" else ""),
                fix=_FIX_OF_EQUAL_VALUES if of_values else _FIX,
                **told(born, "smallest_gap", "smallest", "condition"),
            )
        failure = only_an_error(subject)
        if failure is not None and any(text in failure.text for text in _ERRORS):
            yield self.finding(
                f"a decomposition failed on a finite matrix: {first_line(failure)}",
                fix="add jitter to the diagonal (x + 1e-4 * torch.eye(n)) or regularise; decompose in float64",
                **told_by_error(failure),
            )
