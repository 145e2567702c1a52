"""STA044: an optimizer state that was loaded with second moments of 0 beside first moments that are not."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class SecondMomentLost(Rule[FailedStep]):
    """Adam went on with a first moment from a checkpoint, and divided it by next to nothing.

    ## What it finds
    `load_state_dict` of an optimizer in float32 whose `exp_avg` has values while every `exp_avg_sq` is 0 throughout:
    no training leaves that behind.

    ## Why it is bad
    The update is `exp_avg / (sqrt(exp_avg_sq) + eps)`: until the squares have gathered again it is about thirty times
    as large as the learning rate, and where a gradient is 0 only eps is left below it. The loss jumps by orders of
    magnitude, mostly without any NaN.

    ## Example
    A conversion between formats that writes zeros for what it does not know; a file that was not written to its end

    ## The fix
    Take the optimizer state from a whole checkpoint, or begin with a new optimizer and a short warm-up.

    ## The popular fix that does not work
    A lower learning rate for the rest of the run: the harm is done in the first steps.

    ## References
    Kingma and Ba, Adam (2015), section 3: initialization bias correction
    """

    code = "STA044"
    name = "second-moment-lost"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "NUM025", "STA030")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for load in subject.run.loads:
            if load.kind != "optimizer" or not load.squares_lost:
                continue
            yield self.finding(
                "the optimizer state that was loaded has second moments (exp_avg_sq) of 0 throughout, while its first "
                f"moments reach {load.squares_lost:.3g}",
                fix="load the optimizer state of a whole checkpoint, or begin with a new optimizer and a warm-up",
                evidence={"exp_avg_largest": load.squares_lost, "step": load.step},
                depth=Depth.UPSTREAM,
                place=load.place,
            )
