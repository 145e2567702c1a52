"""NUM007: a deviation or variance of a single value."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, judged, told, told_by_error

_SHORT = "if this is the short last batch of a DataLoader, drop_last=True leaves it out"

_OF_NOTHING = (Kind.DIVISION_BY_ZERO, Kind.ZERO_NORM, Kind.CONSTANT_RESCALED)


class DeviationOfOneSample(Rule[FailedStep]):
    """A standard deviation or variance was taken of a single value, which is NaN with the usual correction.

    ## What it finds
    std, var and batch norm statistics over n values with n not larger than the correction (1 by default), and the
    error that batch norm raises for one value per channel. And one number of the batch that is 0 / 0 in the only
    batch that holds a single sample.

    ## Why it is bad
    The unbiased variance divides by n - 1 = 0. It strikes in the last, shorter batch of an epoch, or in a rollout
    with one environment, and the NaN goes into every weight.

    ## Example
    `adv = (adv - adv.mean()) / (adv.std() + 1e-8)` in a last mini-batch of one

    ## The fix
    Skip the normalisation when there are fewer than two values, use `std(unbiased=False)`, or set
    `drop_last=True`.

    ## The popular fix that does not work
    A larger eps: what has no value has none with an eps added to it.

    ## References
    DLR-RM/stable-baselines3#325, DLR-RM/stable-baselines3#265
    """

    code = "NUM007"
    name = "deviation-of-one-sample"
    cause = "TOO_FEW_SAMPLES"
    severity = Severity.ERROR
    more_specific_than = ("NUM006", "NUM014", "DAT012")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.SPREAD_OF_ONE):
            count = born.how.more.get("one_of")
            if count is not None:
                message = f"the line divides by {count} - 1, and {count} is 1 here"
                yield self.finding(message, fix=f"skip this term when {count} < 2; {_SHORT}", **told(born))
                continue
            if born.how.word:
                message, fix = "a sum of squared deviations was divided by n - 1 = 0", "divide by n"
            else:
                message = (
                    f"{behind(born.birth)} over {counted(born.how.count, 'value')} with correction "
                    f"{born.how.more['correction']}: the divisor n - 1 is not positive"
                )
                fix = "use unbiased=False"
            yield self.finding(
                message, fix=f"skip it when n < 2, or {fix}; {_SHORT}", **told(born, "n", "correction")
            )
        yield from _measure_of_one(self, subject)
        failure = subject.failure
        if failure is not None and "Expected more than 1 " in failure.text:
            yield self.finding(
                "a normalisation layer was given one value per channel in training mode",
                fix=f"{_SHORT}; where batches of one are meant, use a norm over features (LayerNorm, GroupNorm)",
                **told_by_error(failure),
            )


def _measure_of_one(rule: DeviationOfOneSample, step: FailedStep) -> Iterator[Finding]:
    """One number of the whole batch that is 0 / 0, in the one batch that holds a single sample."""
    first = step.judged[0] if step.judged else None
    if first is None or step.usual_size is None or first.how.kind not in _OF_NOTHING:
        return
    if first.birth.birth.numel != 1 or not first.birth.fact("zero_over_zero"):
        return
    yield rule.finding(
        f"0 / 0 in a batch of one sample (the others hold {step.usual_size}): what is measured between samples is 0 "
        "for a single one",
        fix=f"skip this term for a single sample; {_SHORT}",
        **told(first, "zero_over_zero"),
    )
