"""LOG005: a spike of the loss."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Happening, Log, Role, Series
from stayfinite.rules.log.story import main_loss, place, plays_against_itself, when

_ALONE = 10.0
_SOON = 50
_HARM = 2.0


class LossSpike(Rule[Log]):
    """The loss stood far out from the run's own noise, and what came after was worse.

    ## What it finds
    A loss that exceeds the recent ones by ten deviations and three times their own worst, together with a spike of the
    gradient norm at the same place (or, where no norm is logged, by a factor of ten), when the loss stayed at twice its
    level afterwards or the run failed within fifty records. A spike that the run took well is not reported.

    ## Why it is bad
    One update of that size can undo hours of training, and the moments carry it on.

    ## Example
    A loss of 2.1 +- 0.1, one of 19.4, and 5.6 from there on

    ## The fix
    Go back before the spike and skip its batches; look at their samples; let a guard refuse such steps.

    ## The popular fix that does not work
    A fixed threshold on the loss: too high late in training, too low at its start, and False for NaN.

    ## References
    facebookresearch/metaseq#521; PaLM, section on training instability
    """

    code = "LOG005"
    name = "loss-spike-with-harm"
    cause = "BAD_BATCH_SPIKE"
    severity = Severity.WARNING

    def check(self, subject: Log) -> Iterator[Finding]:
        loss = main_loss(subject)
        if loss is None or plays_against_itself(subject):
            return
        norms = {h.point.order for h in subject.kept("spike") if subject.series[h.series].role is Role.NORM}
        logged = any(series.count > 0.5 * loss.count for series in subject.of_role(Role.NORM))
        for spike in subject.kept("spike"):
            if spike.series != loss.name or spike.usual is None:
                continue
            near = any(abs(order - spike.point.order) <= 2 for order in norms)
            if not near and (logged or spike.point.value < _ALONE * abs(spike.usual)):
                continue
            after = _after(loss, spike)
            failed = (
                subject.trouble is not None and 0 <= subject.trouble.point.order - spike.point.order <= _SOON
            )
            harmed = after is not None and spike.usual > 0 and after > _HARM * spike.usual
            if not failed and not harmed:
                continue
            then = "the run failed soon after" if failed else f"the loss stayed at {after:.3g} afterwards"
            yield self.finding(
                f"{loss.name} jumped to {spike.point.value:.4g} at {when(subject, spike.point)} "
                f"(usual: {spike.usual:.4g}), and {then}",
                fix="go back to a checkpoint before this step, skip its batches and look at their samples",
                evidence={"series": loss.name, "step": spike.point.step, "value": spike.point.value,
                          "usual": spike.usual, "after": after},
                **place(subject, spike.point),
            )  # fmt: skip
            return


def _after(loss: Series, spike: Happening) -> float | None:
    """The level of the loss in the buckets behind the spike."""
    behind = [bucket.mean for bucket in loss.buckets if bucket.order > spike.point.order and bucket.finite][
        :64
    ]
    return median(behind) if len(behind) >= 3 else None
