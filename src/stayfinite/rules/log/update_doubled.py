"""LOG004: updates grew before the failure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role
from stayfinite.rules.log.story import place, when

_LAST, _LEAST_BEFORE = 4, 8
_FACTOR = 2.0


class UpdateDoubled(Rule[Log]):
    """The updates became twice as large shortly before the failure.

    ## What it finds
    A logged update norm or update ratio whose last values before the first bad value are at least twice the usual,
    clearly above its own noise.

    ## Why it is bad
    The second moment of Adam lags behind gradients that grow; for a few steps updates are too large, and a loss spike
    or an overflow follows.

    ## Example
    Update ratios of 0.003 for a thousand steps, then 0.007 and 0.011, then NaN

    ## The fix
    A lower beta2 (0.95), clipping of the update, or a lower learning rate from a checkpoint before it.

    ## The popular fix that does not work
    Clipping the gradient: Adam divides by the second moment, so the size of the gradient hardly matters.

    ## References
    StableAdamW, arXiv 2304.13013
    """

    code = "LOG004"
    name = "update-doubled-before-failure"
    cause = "LR_DIVERGENCE"
    severity = Severity.WARNING

    def check(self, subject: Log) -> Iterator[Finding]:
        trouble = subject.trouble
        if trouble is None:
            return
        for series in subject.of_role(Role.UPDATE):
            points = trouble.before.get(series.name, [])
            earlier, last = points[:-_LAST], points[-_LAST:]
            if len(earlier) < _LEAST_BEFORE:
                continue
            usual, now = median(p.value for p in earlier), median(p.value for p in last)
            noise = max(p.value for p in earlier[-64:])
            if usual <= 0 or now < _FACTOR * usual or now <= noise:
                continue
            yield self.finding(
                f"before it, {series.name} rose from {usual:.3g} to {now:.3g}, by {when(subject, last[-1])}",
                fix="lower beta2 or the learning rate, or clip updates; start from a checkpoint before the rise",
                evidence={"series": series.name, "usual": usual, "last": now},
                **place(subject, last[0]),
            )
