"""LOG014: numbers that turned into null."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role

_FEWEST = 3


class NullValues(Rule[Log]):
    """A loss or gradient norm that had been a number is null to the end of the log.

    ## What it finds
    A series that was written as numbers and then as null in every record, at least three times, to the end.

    ## Why it is bad
    JSON has no NaN; many writers put null in its place. Readers pass over null, so the run seems to have stopped
    logging when it had failed.

    ## Example
    `{"step": 812, "loss": null}`

    ## The fix
    Read these records as NaN until something else is known, and write non-finite numbers as the strings "nan", "inf".

    ## The popular fix that does not work
    `dropna()`.

    ## References
    RFC 8259, section 6; pandas.DataFrame.to_json
    """

    code = "LOG014"
    name = "number-became-null"
    cause = "BLIND_GUARD"
    severity = Severity.WARNING

    def check(self, subject: Log) -> Iterator[Finding]:
        for series in subject.of_role(Role.LOSS, Role.COMPONENT, Role.NORM):
            if (
                series.nulls >= _FEWEST
                and series.count >= _FEWEST
                and series.nulls * 50 >= series.count // 100
            ):
                yield self.finding(
                    f"{series.name} is null in the last {series.nulls} records, from line {series.null_since} on, "
                    f"after {series.count} numbers; many writers put null for NaN",
                    fix="treat these records as failed until proved otherwise, and write NaN as a string",
                    evidence={"series": series.name, "nulls": series.nulls, "numbers": series.count},
                    file=subject.path,
                    line=series.null_since,
                )
