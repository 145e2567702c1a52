"""DAT025: vectors of zeros."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet, Use


class ZeroVectors(Rule[DataSet]):
    """Stored vectors that are zero throughout.

    ## What it finds
    Rows of an array of vectors, or of a table, in which every value is 0.

    ## Why it is bad
    A vector of norm 0 has no direction: normalising divides by zero, cosine similarity is undefined, and the gradient
    of the norm is NaN or enormous. In a cache it means that nothing was ever written there.

    ## Example
    `torch.zeros(n, 768)` that was filled by a job which died half way

    ## The fix
    Compute the named rows again; where zeros are meant, leave these rows out of the normalisation.

    ## The popular fix that does not work
    A tiny eps in the norm: the gradient at 0 is then about 1/eps.

    ## References
    torch.nn.functional.normalize
    """

    code = "DAT025"
    name = "zero-vectors"
    cause = "NORMALIZE_ZERO_VECTOR"
    severity = Severity.WARNING

    def check(self, subject: DataSet) -> Iterator[Finding]:
        for array in subject.arrays:
            vectors = array.use is Use.EMBEDDING or (
                array.use is Use.INPUT and array.floating and len(array.shape) == 2
            )
            if not array.zero or not vectors:
                continue
            cache = array.use is Use.EMBEDDING
            yield self.finding(
                f"{array.name}: {array.zero.count} of {array.rows} vectors are zero throughout: "
                f"{subject.named(array.zero)}",
                fix="compute these rows of the cache again"
                if cache
                else "leave these rows out, or find out who should have filled them",
                evidence={
                    "array": array.name,
                    "samples": array.zero.count,
                    "first_samples": [subject.name_of(sample) for sample in array.zero.first],
                },
                severity=Severity.ERROR if cache else None,
                file=subject.path,
            )
