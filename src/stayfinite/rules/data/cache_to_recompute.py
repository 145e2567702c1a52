"""DAT032: an embedding cache that has to be computed again."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet


class CacheToRecompute(Rule[DataSet]):
    """A cache of embeddings is not fit for use: some rows, or all of it, have to be computed again.

    ## What it finds
    A file of vectors with rows that are not finite or zero throughout. Up to a tenth of the rows: these rows. More, or
    a damaged file: all of it.

    ## Why it is bad
    A cache is trusted for as long as it exists. What went wrong when it was made returns in every run.

    ## Example
    50,000 vectors of which the last 12,000 are zero: the job that made them was killed

    ## The fix
    Compute the named rows, or the whole cache, again, and write it to a temporary name that is renamed when complete.

    ## The popular fix that does not work
    Leaving out NaN rows while training: the rows that are zero or stale stay.

    ## References
    rules DAT020, DAT025 and DAT031, which say what is wrong with it
    """

    code = "DAT032"
    name = "cache-to-recompute"
    cause = "DATA_NONFINITE"
    severity = Severity.WARNING

    def check(self, subject: DataSet) -> Iterator[Finding]:
        what = subject.recompute()
        if what in (None, "nothing"):
            return
        worst = max(subject.caches, key=lambda array: array.bad.count + array.zero.count)
        broken = worst.bad.count + worst.zero.count
        yield self.finding(
            f"recompute {'these rows' if what == 'rows' else 'the whole cache'}: {broken} of {worst.rows} vectors of "
            f"{worst.name} are not usable" + (", and the file is damaged" if subject.problems else ""),
            fix="compute them again, write to a temporary name and rename it when complete",
            evidence={"recompute": what, "broken": broken, "rows": worst.rows,
                      "first_samples": [subject.name_of(s) for s in sorted({*worst.bad.first, *worst.zero.first})]},
            file=subject.path,
        )  # fmt: skip
