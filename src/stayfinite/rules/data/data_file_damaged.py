"""DAT031: a data file that is damaged."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet


class DataFileDamaged(Rule[DataSet]):
    """A data file, or a part of it, cannot be read.

    ## What it finds
    Files that are empty, cut off or of no known format; archives with a wrong checksum; arrays that promise more than
    the file holds; rows with another number of cells; images that cannot be decoded.

    ## Why it is bad
    A loader that catches the error and goes on gives zeros, or the wrong sample; one that does not ends a run after
    hours.

    ## Example
    A JPEG of 0 bytes in a folder of a million

    ## The fix
    Fetch or make the named files again.

    ## The popular fix that does not work
    `try: ... except: return self[index + 1]` in the data set: the damage stays, and grows.

    ## References
    PIL.Image (LOAD_TRUNCATED_IMAGES); numpy.load
    """

    code = "DAT031"
    name = "data-file-damaged"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR

    def check(self, subject: DataSet) -> Iterator[Finding]:
        for problem in subject.problems:
            named = problem.file if problem.file and not problem.message.startswith(problem.file) else ""
            yield self.finding(
                f"{named}: {problem.message}" if named else problem.message,
                fix="fetch or make the file again",
                evidence={"file": problem.file},
                file=problem.file or subject.path,
            )
