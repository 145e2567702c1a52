"""SRC039: a decomposition or inverse of a matrix that can be singular."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, unguarded

_DECOMPOSITIONS = ("cholesky", "inverse", "inv", "solve", "det", "logdet", "slogdet", "svd", "eigh")


class GramMatrixDecomposed(Rule[SourceFile]):
    """A matrix of the form x x^T is inverted or decomposed although it can be singular.

    ## What it finds
    cholesky, inverse, solve, det, logdet, svd, eigh of `x @ x.T` (or `torch.cov`) without something added
    to its diagonal.

    ## Why it is bad
    With fewer samples than dimensions x x^T is singular: cholesky raises, the inverse and logdet are
    infinite. The gradients of svd and eigh divide by differences of singular values, which are 0 where
    values repeat.

    ## Example
    `torch.logdet(z.T @ z / n)`

    ## The fix
    Add to the diagonal: `cov + 1e-4 * torch.eye(d)`; `torch.linalg.svdvals` / `eigvalsh` where only values
    are needed; float64.

    ## The popular fix that does not work
    Clipping gradients: NaN stays NaN.

    ## References
    torch.linalg.svd and eigh documentation (warnings on gradients)
    """

    code = "SRC039"
    name = "gram-matrix-decomposed"
    cause = "LINALG_DEGENERATE"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, *_DECOMPOSITIONS):
            value = operation.operands[0]
            if value.has("loaded"):
                continue
            repeated = (
                operation.name in ("svd", "eigh") and value.grad and value.traits & {"identity", "constant"}
            )
            if not value.has("gram") and not repeated:
                continue
            if operation.no_grad and operation.name in ("svd", "eigh"):
                continue
            yield self.finding(
                f"{operation.name} of "
                f"{'equal values' if repeated else 'a Gram matrix without anything on its diagonal'}: "
                "it can be singular, and gradients divide by differences of singular values",
                fix="add a small multiple of the identity (1e-4 * torch.eye(n)); svdvals or "
                "eigvalsh where vectors are not needed",
                evidence=evidence(operation),
                **at(subject, operation),
            )
