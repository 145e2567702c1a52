"""NUM020: a matrix decomposition at repeated or zero singular values."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import at, behind, births_by_weight, facts, tensors

_DECOMPOSITIONS = ("svd", "linalg_svd", "linalg_eigh", "linalg_eig", "linalg_qr", "linalg_cholesky",
                   "linalg_cholesky_ex",
                   "linalg_inv", "linalg_inv_ex", "inverse", "linalg_solve", "linalg_solve_ex", "linalg_lstsq",
                   "linalg_det", "linalg_slogdet", "cholesky", "linalg_pinv", "linalg_lu_factor_ex", "symeig",
                   "linalg_eigvalsh", "linalg_svdvals", "logdet", "slogdet", "det", "lu_solve",
                   "linalg_lu_solve", "cholesky_solve", "cholesky_inverse", "linalg_solve_triangular",
                   "triangular_solve", "linalg_matrix_exp", "linalg_ldl_factor_ex")  # fmt: skip
_ERRORS = (
    "linalg.",
    "singular",
    "not positive-definite",
    "positive definite",
    "failed to converge",
    "ill-conditioned",
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
    If only the values matter use `torch.linalg.svdvals` or `eigvalsh`; add a small jitter to the diagonal; use
    float64 for this one op; regularise the covariance before Cholesky.

    ## The popular fix that does not work
    Clipping the gradient: it is NaN, not large.

    ## References
    pytorch/pytorch#49886, tensorflow/tensorflow#17476
    """

    code = "NUM020"
    name = "degenerate-decomposition"
    cause = "LINALG_DEGENERATE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if behind(birth) not in _DECOMPOSITIONS or birth.transition == "inf->nan":
                continue
            if any(not operand.finite for operand in (*birth.operands, *birth.saved)):
                continue
            gap = birth.facts.get("smallest_gap")
            seen = f", smallest gap of its values {gap:.2g}" if isinstance(gap, (int, float)) else ""
            yield self.finding(
                f"{behind(birth)} of a degenerate matrix{seen}"
                + (": its gradient divides by zero" if birth.phase == "backward" else ""),
                fix="use svdvals or eigvalsh if only the values matter, else add jitter: x + 1e-4 * torch.eye(n)",
                evidence={
                    "inputs": tensors(*birth.operands, *birth.saved),
                    **facts(birth, "smallest_gap", "smallest", "condition"),
                },
                confidence=0.95 * weight,
                **at(birth),
            )
        failure = subject.failure
        if (
            failure is not None
            and not _came_in_bad(subject)
            and any(text in failure.text for text in _ERRORS)
        ):
            yield self.finding(
                f"a decomposition failed on a finite matrix: {failure.text.strip().splitlines()[0]}",
                fix="add jitter to the diagonal (x + 1e-4 * torch.eye(n)) or regularise; decompose in float64",
                evidence={"error": failure.text},
                confidence=0.9,
                file=failure.place.file,
                line=failure.place.line,
            )


def _came_in_bad(step: FailedStep) -> bool:
    """The error is only the messenger of a NaN that was born before."""
    return bool(step.births) and step.births[0].transition != "raised"
