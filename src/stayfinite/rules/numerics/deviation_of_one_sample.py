"""NUM007: a deviation or variance of a single value."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.rules.evidence import at, behind, births_by_weight, facts, tensors

_SPREADS = ("std", "var", "std_mean", "var_mean", "native_batch_norm", "batch_norm", "cudnn_batch_norm",
            "native_batch_norm_legit", "cov", "corrcoef", "batch_norm_with_update")  # fmt: skip


class DeviationOfOneSample(Rule[FailedStep]):
    """A standard deviation or variance was taken of a single value, which is NaN with the usual correction.

    ## What it finds
    std, var and batch norm statistics over n values with n not larger than the correction (1 by default), and the
    error that batch norm raises for one value per channel.

    ## Why it is bad
    The unbiased variance divides by n - 1 = 0. It strikes in the last, shorter batch of an epoch, or in a rollout
    with one environment, and the NaN goes into every weight.

    ## Example
    `adv = (adv - adv.mean()) / (adv.std() + 1e-8)` in a last mini-batch of one

    ## The fix
    Skip the normalisation when there are fewer than two values, use `std(unbiased=False)`, or set
    `drop_last=True`.

    ## The popular fix that does not work
    A larger eps in the denominator: NaN + eps is NaN.

    ## References
    DLR-RM/stable-baselines3#325, DLR-RM/stable-baselines3#265
    """

    code = "NUM007"
    name = "deviation-of-one-sample"
    cause = "TOO_FEW_SAMPLES"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if behind(birth) not in _SPREADS:
                continue
            n, correction = birth.facts.get("n"), birth.facts.get("correction", 1)
            if not isinstance(n, (int, float)) or not isinstance(correction, (int, float)):
                continue
            if n > correction or (n == 0 and birth.facts.get("empty")):
                continue
            yield self.finding(
                f"{behind(birth)} over {int(n)} value{'s' if n != 1 else ''} with correction {int(correction)}: "
                "the divisor n - 1 is not positive",
                fix="skip the normalisation when n < 2, use unbiased=False, or drop_last=True in the DataLoader",
                evidence={"inputs": tensors(*birth.operands), **facts(birth, "n", "correction")},
                confidence=0.97 * weight,
                **at(birth),
            )
        first = subject.birth
        if first is not None and _variance_by_hand(first):
            yield self.finding(
                "a sum of squared deviations was divided by n - 1 = 0",
                fix="skip the variance when n < 2, or divide by n",
                evidence={"inputs": tensors(*first.operands)},
                confidence=0.85,
                **at(first),
            )
        failure = subject.failure
        if failure is not None and "Expected more than 1 " in failure.text:
            yield self.finding(
                "a normalisation layer was given one value per channel in training mode",
                fix="set drop_last=True in the DataLoader, or use a norm over features (LayerNorm, GroupNorm)",
                evidence={"error": failure.text},
                confidence=0.97,
                file=failure.place.file,
                line=failure.place.line,
            )


def _variance_by_hand(birth: TracedBirth) -> bool:
    """((x - mean) ** 2).sum() / (n - 1), with n - 1 a number of the script."""
    if birth.op != "div" or birth.operand("other") is not None or not birth.fact("zero_divisors"):
        return False
    total = birth.operand("self")
    return total is not None and all(
        total.made_by(*names, within=5) is not None
        for names in (("sum",), ("pow", "mul", "square"), ("sub",), ("mean",))
    )
