"""RUN024: settings with which weights grow whatever the gradients are."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import OptimizerFacts
from stayfinite.findings.update_size import absurd_rate, overshoots, ruin, sets_itself_growing
from stayfinite.rules.evidence import place_of_failure
from stayfinite.rules.run.growth import growth, of_the_last


class SelfGrowingUpdates(Rule[FailedStep]):
    """Momentum, weight decay or a clipping norm of a size with which the run diverges at any data.

    ## What it finds
    A run that failed or diverged, with an optimizer whose momentum is 1 or more, or whose weight decay times its
    learning rate is above 2; and, in any run, gradients that are clipped to a negative norm.

    ## Why it is bad
    Momentum above 1 enlarges the last update at every step. Decay multiplies the weights by 1 - rate * decay: below -1
    they change their sign and grow at every step, without any gradient. A negative norm turns every gradient around, so
    that each step climbs.

    ## Example
    `AdamW(params, lr=1e-3, weight_decay=1e4)`: every step multiplies the weights by -9

    ## The fix
    Momentum below 1 (0.9), decay times learning rate far below 1 (0.01 to 0.1 at 1e-3), a positive norm.

    ## The popular fix that does not work
    A lower learning rate: it makes the growth slower, or moves it to later steps, and the setting stays.

    ## References
    torch.optim.SGD, torch.optim.AdamW, torch.nn.utils.clip_grad_norm_
    """

    code = "RUN024"
    name = "self-growing-updates"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR
    more_specific_than = ("RUN001", "RUN010", "RUN019", "RUN020", "NUM021", "NUM025")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for clip in subject.run.clips:
            if clip.max_norm is not None and clip.max_norm < 0:
                yield self.finding(
                    f"gradients are clipped to a norm of {clip.max_norm:g}: a negative one turns all of them around, "
                    "so that the updates go up the loss",
                    fix="clip to a positive norm, such as 1.0",
                    evidence={"max_norm": clip.max_norm},
                    depth=Depth.FIRST,
                    place=clip.place,
                )
                return
        if absurd_rate(subject) or not _went_out_of_range(subject):
            return
        rates = [r.own_rate for r in subject.run.history if r.applied and r.own_rate is not None]
        for optimizer in subject.run.optimizers:
            if (told := _setting(optimizer, max(rates, default=0.0))) is not None:
                message, fix, evidence = told
                yield self.finding(
                    message, fix=fix, evidence=evidence, depth=Depth.FIRST, place=place_of_failure(subject)
                )
                return


def _setting(optimizer: OptimizerFacts, highest: float) -> tuple[str, str, dict[str, float]] | None:
    """`highest`: of the learning rates up to now."""
    kind = f"{optimizer.kind} (line {optimizer.created.line})" if optimizer.created.line else optimizer.kind
    if overshoots(optimizer) and optimizer.shrinking is not None:
        rate, decay = max(optimizer.shrinking[0], highest), optimizer.shrinking[1]
        return (
            f"{kind} has a weight decay of {decay:g} at a learning rate of up to {rate:.3g}: such an update "
            f"multiplies the weights by {1 - rate * decay:.3g} before it adds anything",
            "lower the weight decay: 0.01 to 0.1 is usual; then start again",
            {"weight_decay": decay, "lr": rate},
        )
    if sets_itself_growing(optimizer):
        return (
            f"the momentum of {kind} is {optimizer.momentum:g}: from 1 on no earlier update is forgotten, and "
            "above it each counts more at every step",
            "a momentum below 1 (0.9), then start again; at a lower learning rate the same comes later",
            {"momentum": optimizer.momentum},
        )
    return None


def _went_out_of_range(step: FailedStep) -> bool:
    """The failure is one that growing weights bring about."""
    if step.judged:
        return step.judged[0].how.kind in DEPENDS_ON_SIZE
    if step.run.complete:
        grown = growth(of_the_last(step.run.history)) if step.run.history else None
        return ruin(step.run.history) is not None or (grown is not None and grown.quantity == "loss")
    return bool(step.norm_overflowed or step.state or step.bad_update)
