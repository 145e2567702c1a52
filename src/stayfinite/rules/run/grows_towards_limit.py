"""RUN018: something grows, and the range of its dtype ends soon."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.outlook import FLOAT16_LIMIT, Outlook
from stayfinite.findings.update_size import how_far

_CAUSES = {"argument of exp": "EXP_OVERFLOW", "loss scale": "LOSS_SCALE_COLLAPSE"}


class GrowsTowardsLimit(Rule[Outlook]):
    """A run that is still finite is on its way to a number that its dtype cannot hold.

    ## What it finds
    On sampled steps the guard measures what comes out of every module. A finding is made when the logarithm of a
    module's largest output rises steadily (nearly every pair of the last samples says so), at least half of the way
    to the limit is behind it, and the trend reaches the limit within about as many steps as it has been seen, and
    within 24. Or when float16 values stand within a factor of 3 of 65504, step after step. The same is done for the
    arguments of exponentials, for scores that float16 holds before a softmax, and for a loss scale that falls
    towards its floor. Growth that slows down before the limit is silent.

    ## Why it is bad
    The loss looks normal until one value is not finite; from then on every batch may fail. The weights of now are the
    last good ones, so the guard keeps a verified copy of them (`Policy(foresee="keep")`, the default).

    ## Example
    A residual stream that six blocks enlarge four times each: 7 at the input, 37,000 behind the last block, in float16

    ## The fix
    Bound what amplifies: weights that sum to 1, filters divided by the root of their fan-in, a residual that is
    scaled or normalised. bfloat16 moves a limit of 65504 away; it does not stop the growth. A lower learning rate
    slows it down.

    ## The popular fix that does not work
    Gradient clipping: it bounds one update, and the signal grows by many small ones. Clamping activations: their
    gradient is 0 from then on.

    ## References
    lucidrains/hyper-connections#4, allenai/OLMo#797
    """

    code = "RUN018"
    name = "grows-towards-limit"
    cause = "LR_DIVERGENCE"
    severity = Severity.WARNING

    def check(self, subject: Outlook) -> Iterator[Finding]:
        half = subject.limit == FLOAT16_LIMIT
        yield self.finding(
            f"{_subject(subject)} {_trend(subject)}; {_when(subject)}{_cause(subject)}{_by(subject)}",
            fix=_fix(subject),
            cause=_CAUSES.get(subject.what) or ("FP16_OVERFLOW" if half else "LR_DIVERGENCE"),
            evidence={
                "what": subject.what,
                "where": subject.where,
                "value": subject.value,
                "limit": subject.limit,
                "factor": subject.factor,
                "steps_left": [round(subject.low), _whole(subject.high)],
                "amplifiers": [
                    {"kind": a.kind, "gain": a.gain, "modules": list(a.names[:8])} for a in subject.amplifiers
                ],
            },
        )


def _subject(outlook: Outlook) -> str:
    if outlook.what == "loss scale":
        return f"the loss scale is {outlook.value:.3g}, from {outlook.first_value:.3g} at step {outlook.first_step},"
    if outlook.what == "argument of exp":
        return f"the argument of exp in {outlook.where} is {outlook.value:.3g}"
    if outlook.what == "attention score":
        return f"the largest score before the softmax in {outlook.where} is {outlook.value:.3g}"
    kind = f" ({outlook.kind})" if outlook.kind else ""
    return f"the largest output of {outlook.where}{kind} is {outlook.value:.3g}"


def _trend(outlook: Outlook) -> str:
    if outlook.what == "loss scale":
        return "and falls at nearly every step"
    if math.isinf(outlook.high):
        return (
            f"and has been within a factor of 3 of {outlook.limit:g}, the end of float16, in the last samples"
        )
    return f"and grows {outlook.factor:.3g} times a step (from {outlook.first_value:.3g} at step {outlook.first_step})"


def _when(outlook: Outlook) -> str:
    if math.isinf(outlook.high):
        return f"{outlook.limit / outlook.value:.2g} times more and the step fails"
    low, high = max(1, round(outlook.low)), max(1, round(outlook.high))
    span = f"{low} to {high}" if high > low else f"{low}"
    end = {"loss scale": "its floor", "argument of exp": "the largest that exp takes"}.get(
        outlook.what,
        "where float16 ends" if outlook.limit == FLOAT16_LIMIT else "whose square float32 cannot hold",
    )
    limit = f"{outlook.limit:.5g}" if outlook.limit < 1e5 else f"{outlook.limit:.4g}"
    return f"at this pace it would reach {limit} ({end}) in {span} step{'' if span == '1' else 's'}"


def _cause(outlook: Outlook) -> str:
    """An update that went many times too far is nearer to the cause than what the modules make of such weights."""
    far = outlook.far
    if far is None or far.update_ratio is None or outlook.what == "loss scale":
        return ""
    rate = f" at learning rate {far.own_rate:g}" if far.own_rate is not None else ""
    return f". The update of step {far.step}{rate} moved the weights {how_far(far.update_ratio)}"


def _by(outlook: Outlook) -> str:
    return f". What amplifies: {', '.join(map(str, outlook.amplifiers))}" if outlook.amplifiers else ""


def _fix(outlook: Outlook) -> str:
    if outlook.far is not None and outlook.what != "loss scale":
        return "lower the learning rate, and start again from weights before that update"
    if outlook.what == "loss scale":
        return "look for the forward pass that overflows: no loss scale is small enough for it"
    if outlook.what == "argument of exp":
        return "subtract the maximum before exp (logsumexp, softmax), or bound its argument"
    if outlook.what == "attention score":
        return (
            "normalise queries and keys, divide by the root of their width before they are multiplied, or use "
            "scaled_dot_product_attention, which adds scores up in float32"
        )
    bounds = (
        "weights that sum to 1, filters divided by the root of their fan-in, a scaled or normalised residual"
    )
    if outlook.limit == FLOAT16_LIMIT:
        return (
            f"bound what amplifies ({bounds}); bfloat16 or float32 for these modules gains time, and so does a lower "
            "learning rate"
        )
    return f"bound what amplifies ({bounds}) and lower the learning rate"


def _whole(steps: float) -> int | None:
    return round(steps) if math.isfinite(steps) else None
