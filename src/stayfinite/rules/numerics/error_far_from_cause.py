"""NUM023: an error message far from the value that caused it."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.rules.evidence import first_line

_UNRELATED = ("is non-finite, so it cannot be clipped", "not reproduced")


class ErrorFarFromCause(Rule[FailedStep]):
    """The exception names a victim: the value it complains about became NaN earlier, at another line.

    ## What it finds
    An exception (BCELoss range, multinomial, a constraint of torch.distributions, a failed decomposition, an index
    made of NaN) in a step where a NaN or Inf was born before it, at a place that is named.

    ## Why it is bad
    People repair the line of the exception. The birth stays, and next time something else complains.

    ## Example
    "invalid multinomial distribution" two steps after `adv.std()` of a single value made the weights NaN

    ## The fix
    Repair the birth that the report names; the exception goes with it.

    ## The popular fix that does not work
    Clamping the probabilities or `validate_args=False`: the message is gone and the weights are NaN.

    ## References
    DLR-RM/stable-baselines3#265
    """

    code = "NUM023"
    name = "error-far-from-cause"
    cause = "SECONDARY_ERROR"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        failure, birth = subject.failure, subject.birth
        if failure is None or birth is None or birth.transition == "raised":
            return
        if any(text in failure.text for text in _UNRELATED):
            return
        yield self.finding(
            f"{failure.kind} at line {failure.place.line} ({first_line(failure)[:120]}) is a consequence: the "
            f"value {_began(birth)} at line {birth.birth.line}",
            fix=f"repair line {birth.birth.line}; leave the line of the exception as it is",
            evidence={"error": failure.text, "error_line": failure.place.line, "birth_op": birth.birth.op},
            depth=Depth.CONSEQUENCE,
            file=birth.birth.file,
            line=birth.birth.line,
        )


def _began(birth: TracedBirth) -> str:
    """What was not computed came in: with a batch, an array, a file."""
    return "came in" if birth.transition == "outside" else f"was born in {birth.op}"
