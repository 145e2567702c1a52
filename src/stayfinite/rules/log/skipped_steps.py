"""LOG012: too many steps were not applied."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role, Series

_MANY = 0.10
_MOST = 0.5
_IN_A_ROW = 10
_FEWEST = 20


class SkippedSteps(Rule[Log]):
    """Many steps of the run were skipped, so fewer updates were applied than the log suggests.

    ## What it finds
    In a stayfinite record: more than a tenth of the steps not applied, or ten in a row. In other logs: a success rate
    below 90 per cent, or a logged count of skipped steps above a tenth of all.

    ## Why it is bad
    "No NaN printed" is not success; applied updates are. A run that skips most of its batches trains on the easy ones,
    at a schedule that goes on without it.

    ## Example
    success rate 0.41 in a run that reports an average loss of 0.0

    ## The fix
    Find out why they fail: `incidents/` of the run names the operation. Skipping is for accidents.

    ## The popular fix that does not work
    A larger budget of skips.

    ## References
    the success criteria of staged runs in docs/guard.md (more than 90 % applied)
    """

    code = "LOG012"
    name = "many-steps-skipped"
    cause = "BLIND_GUARD"
    severity = Severity.WARNING

    def check(self, subject: Log) -> Iterator[Finding]:
        total = sum(subject.actions.values())
        refused = total - subject.actions.get("none", 0)
        if (total >= _FEWEST and refused > _MANY * total) or subject.longest_skip >= _IN_A_ROW:
            listed = ", ".join(
                f"{name} {count}" for name, count in sorted(subject.actions.items()) if name != "none"
            )
            yield self._finding(
                subject,
                f"{refused} of {total} steps were not applied ({listed}), {subject.longest_skip} in a row at most",
                refused / total,
                {"actions": subject.actions, "in_a_row": subject.longest_skip},
                grave=subject.longest_skip >= _IN_A_ROW,
            )
        for series in subject.of_role(Role.SUCCESS):
            share = series.last_finite.value if series.last_finite else 1.0
            share = share / 100 if series.maximum > 1.5 else share
            if 0 <= share < 1 - _MANY and series.count >= 3:
                yield self._finding(subject, f"{series.name} is {share:.0%} at the end of the log", 1 - share,
                                    {"series": series.name, "share": share})  # fmt: skip
        # In a record of ours `skipped` is the share of the last steps, now and then; its actions are the whole of it.
        for series in subject.of_role(Role.SKIPPED) if not subject.actions else ():
            skipped = _share(subject, series)
            if skipped is not None and skipped > _MANY:
                yield self._finding(subject, f"{series.name}: {skipped:.0%} of the steps were skipped", skipped,
                                    {"series": series.name, "share": skipped})  # fmt: skip

    def _finding(
        self, log: Log, message: str, share: float, evidence: dict[str, object], grave: bool = False
    ) -> Finding:
        return self.finding(
            message,
            fix="find out why steps fail (incidents/ of the run, or stayfinite run); skipping is for accidents",
            evidence={**evidence, "skipped": share},
            severity=Severity.ERROR if grave or share > _MOST else None,
            file=log.path,
        )


def _share(log: Log, series: Series) -> float | None:
    """A flag in each record, or a count that grows."""
    if series.count < _FEWEST or series.minimum < 0:
        return None
    if series.maximum <= 1:
        return sum(bucket.total for bucket in series.buckets) / series.count
    steps = (log.last_step or 0) - (log.first_step or 0) + 1 if log.counted else log.records
    last = series.last_finite.value if series.last_finite else 0.0
    grows = last == series.maximum
    return last / steps if grows and steps >= last else None
