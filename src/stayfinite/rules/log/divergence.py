"""LOG011: a run that diverged without a NaN."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log
from stayfinite.rules.log.story import main_loss, place, plays_against_itself

_FEWEST = 20
_ABOVE_BEST = 10.0
_ABOVE_START = 3.0


class Divergence(Rule[Log]):
    """The loss ends far above its best and above where it started.

    ## What it finds
    A positive training loss whose level at the end of the log is ten times its best level and three times the level at
    the start. Losses of adversarial and reinforcement training are not judged.

    ## Why it is bad
    The run is lost although nothing is NaN; checkpoints of the last part are worse than the first.

    ## Example
    4.2, 2.9, 2.1, 3.8, 19, 88, 240

    ## The fix
    Go back to the best checkpoint, with a lower learning rate; look at what the learning rate and the data did where
    the loss turned.

    ## The popular fix that does not work
    Waiting: the moments hold the large gradients for a thousand steps.

    ## References
    facebookresearch/maskrcnn-benchmark#295
    """

    code = "LOG011"
    name = "loss-diverged"
    cause = "LR_DIVERGENCE"
    severity = Severity.ERROR

    def check(self, subject: Log) -> Iterator[Finding]:
        loss = main_loss(subject)
        if (
            loss is None
            or loss.ends_bad
            or loss.count < _FEWEST
            or loss.minimum < 0
            or plays_against_itself(subject)
        ):
            return
        known = [bucket for bucket in loss.buckets if bucket.finite]
        size = max(1, len(known) // 20)
        groups = [known[i : i + size] for i in range(0, len(known) - size + 1, size)]
        levels = [median(bucket.mean for bucket in group) for group in groups]
        if len(levels) < 4:
            return
        best = min(range(len(levels)), key=levels.__getitem__)
        end = min(levels[-2:])
        start = max(levels[0], loss.head[0].value if loss.head else 0.0)
        if end < _ABOVE_BEST * max(levels[best], 1e-12) or end < _ABOVE_START * start:
            return
        turn = groups[best][-1]
        yield self.finding(
            f"{loss.name} ends at {end:.3g}, {end / max(levels[best], 1e-12):.3g} times its best level "
            f"({levels[best]:.3g}, up to step {turn.last_step:g}); it started at {start:.3g}",
            fix=f"go back to a checkpoint near step {turn.last_step:g} and lower the learning rate",
            evidence={
                "series": loss.name,
                "start": start,
                "best": levels[best],
                "best_step": turn.last_step,
                "end": end,
            },
            **place(subject, loss.last or loss.head[0]),
        )
