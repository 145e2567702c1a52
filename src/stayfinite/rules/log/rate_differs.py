"""LOG013: the learning rate in the log is not the configured one."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role, Series
from stayfinite.rules.log.story import place

_NEAR = 0.02
_PEAK_BETWEEN_RECORDS = 0.1
"""By so much the highest of a log may stay below the peak: a log of every tenth step misses it, and a warm-up that is
multiplied with a decay never reaches it."""


class RateDiffers(Rule[Log]):
    """The run trained at another learning rate than its configuration asks for.

    ## What it finds
    A logged learning rate that goes above every configured rate, or that came down again without having come within a
    tenth of the smallest of them, in a log that covers the start of the run.

    ## Why it is bad
    The setting people change and the rate that is used are two things: schedulers and optimizers bring their own on
    resume, scaling rules multiply it, a typing mistake leaves the default.

    ## Example
    `lr: 1e-4` in the config, and a peak of 5e-4 in the log, which is the rate of the checkpoint

    ## The fix
    Print the rate of the first steps beside the configured one; set it after `load_state_dict`.

    ## The popular fix that does not work
    Changing the config again.

    ## References
    ultralytics/yolov5#292; rule CKP022 for the rate in a checkpoint
    """

    code = "LOG013"
    name = "logged-rate-differs-from-config"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: Log) -> Iterator[Finding]:
        rates = subject.of_role(Role.RATE)
        if not subject.configured or not rates:
            return
        asked = sorted({rate.value for rate in subject.configured})
        highest = max(rates, key=lambda series: series.maximum)
        above = highest.maximum > (1 + _NEAR) * asked[-1]
        below = highest.maximum < (1 - _PEAK_BETWEEN_RECORDS) * asked[0] and _whole(subject, highest)
        if (not above and not below) or highest.first is None:
            return
        config = subject.configured[0]
        yield self.finding(
            f"{highest.name} reaches {highest.maximum:.4g} in the log; {config.key} in {config.file} is "
            f"{', '.join(f'{value:.4g}' for value in asked[:3])}",
            fix="set the learning rate after loading optimizer and scheduler, and print it in the first steps",
            evidence={"logged": highest.maximum, "configured": asked, "config": config.file},
            **place(subject, highest.first),
        )


def _whole(log: Log, series: Series) -> bool:
    """The log covers the start of the run, and the rate has come down from its highest."""
    begins = not log.counted or (log.first_step or 0) <= 0.05 * (log.last_step or 0) + 1
    last = series.last_finite.value if series.last_finite else series.maximum
    return begins and (last < 0.98 * series.maximum or series.minimum == series.maximum)
