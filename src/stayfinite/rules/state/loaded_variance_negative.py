"""STA045: a loaded running variance, or second moment, below zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep

_FIX = (
    "load a checkpoint that `stayfinite scan` calls healthy, or reset_running_stats() and some training batches before "
    "the next evaluation"
)


_FIX_OF_MOMENTS = (
    "load the optimizer state of a checkpoint that `stayfinite scan` calls healthy, or begin with a new optimizer and "
    "a warm-up"
)
_AVOID_OF_MOMENTS = "A larger eps, or a lower learning rate: the root is taken before either is asked for."


class LoadedVarianceNegative(Rule[FailedStep]):
    """The state that was loaded holds a running variance of a batch norm, or a second moment, that is negative.

    ## What it finds
    `load_state_dict` of a model whose `running_var` is below -eps somewhere, or of an optimizer whose second moments
    are below 0: in a step in which a root was then taken of it, or in a run that was otherwise without a failure.

    ## Why it is bad
    In evaluation a batch norm divides by `sqrt(running_var + eps)`: every value of that channel is NaN. In training it
    uses the variance of the batch, so the training loss shows nothing, while validation, or a teacher in `eval()`, is
    NaN. Adam and its kin take the root of the second moment in every step: the first update writes NaN into the weight.

    ## Example
    An average of two checkpoints with a negative weight; a flipped sign bit in a copied file

    ## The fix
    Load another checkpoint, or `reset_running_stats()` and let some training batches pass before the next evaluation.

    ## The popular fix that does not work
    Evaluating in training mode: each sample then depends on the others of its batch.

    ## References
    torch documentation, torch.nn.BatchNorm2d
    """

    code = "STA045"
    name = "loaded-variance-negative"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR
    more_specific_than = ("NUM013",)

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        first = subject.judged[0] if subject.judged else None
        rooted = first is not None and first.how.kind is Kind.ROOT_OF_NEGATIVE
        in_norm = rooted and first is not None and "batch_norm" in first.birth.op
        in_update = rooted and first is not None and first.birth.phase == "optimizer"
        for load in subject.run.loads:
            of_moments = load.kind == "optimizer"
            met = in_update if of_moments else in_norm
            if not load.negative or not (met or subject.run.complete):
                continue
            name, lowest = min(load.negative, key=lambda held: held[1])
            others = len(load.negative) - 1
            what = "second moment" if of_moments else "running variance"
            who = "the optimizer" if of_moments else "in evaluation its batch norm"
            yield self.finding(
                f"the {load.kind} state that was loaded holds a {what} of {lowest:.3g} in {name}"
                + (f", and negative ones in {others} more" if others else "")
                + ("" if met else f": {who} takes the root of a negative number"),
                fix=_FIX_OF_MOMENTS if of_moments else _FIX,
                avoid=_AVOID_OF_MOMENTS if of_moments else None,
                evidence={"tensors": dict(load.negative)},
                depth=Depth.UPSTREAM,
                place=load.place,
            )
