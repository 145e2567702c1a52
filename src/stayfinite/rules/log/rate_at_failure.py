"""LOG007: what the learning rate did when the run failed."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role
from stayfinite.rules.log.story import place, when

_SOON = 64
_PEAK = 0.98
_HELD = 2 / 3
"""A run that went through a rate half as high again since the jump did not fail because of the jump."""


class RateAtFailure(Rule[Log]):
    """The run failed while the learning rate was rising, at its peak, or right after it jumped.

    ## What it finds
    The first bad value within 64 records after the learning rate became three times as large in one go (and not much
    higher in between), or while it was still rising, or at its highest value of the whole log shortly after a rise.

    ## Why it is bad
    Failures gather at the end of the warm-up and at restarts of a schedule: the rate passes what the model can take.

    ## Example
    OneCycleLR: NaN at 28.5 of 80 epochs, exactly at the peak of the cycle

    ## The fix
    Lower the peak below the rate at which the first signs showed, or warm up more slowly.

    ## The popular fix that does not work
    A lower rate in the config on resume: scheduler and optimizer bring the old peak back with their state.

    ## References
    torch.optim.lr_scheduler.OneCycleLR; ultralytics/yolov5#292
    """

    code = "LOG007"
    name = "failed-at-high-rate"
    cause = "LR_DIVERGENCE"
    severity = Severity.INFO

    def check(self, subject: Log) -> Iterator[Finding]:
        trouble = subject.trouble
        if trouble is None:
            return
        for series in subject.of_role(Role.RATE):
            points = trouble.before.get(series.name, [])
            now = trouble.around.get(series.name)
            if len(points) < 4 or now is None:
                continue
            jumps = [
                h for h in subject.kept("rate-jump")
                if h.series == series.name and 0 <= trouble.point.order - h.point.order <= _SOON
                and now >= _HELD * max(p.value for p in points if p.order >= h.point.order)
            ]  # fmt: skip
            recent = [point.value for point in points[-_SOON:]]
            if jumps:
                jump = jumps[-1]
                what = f"had jumped from {jump.usual:.4g} to {jump.point.value:.4g} at {when(subject, jump.point)}"
            elif now > 1.02 * recent[0] and recent == sorted(recent):
                what = f"was still rising, from {recent[0]:.4g} over the last {len(recent)} records"
            elif (
                now >= _PEAK * series.maximum
                and series.minimum < 0.5 * series.maximum
                and min(p.value for p in points) < _PEAK * now
            ):
                what = "was at its highest of the whole log"
            else:
                continue
            yield self.finding(
                f"when the run failed at {when(subject, trouble.point)} the learning rate "
                f"({series.name}) {what}: {now:.4g}",
                fix="lower the peak learning rate or warm up more slowly, from a checkpoint before the rise",
                evidence={
                    "series": series.name,
                    "rate": now,
                    "highest": series.maximum,
                    "step": trouble.point.step,
                },
                **place(subject, trouble.point),
            )
            return
