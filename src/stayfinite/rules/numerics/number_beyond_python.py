"""NUM030: a finite number of the training that is too large for python's own arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import only_an_error, told_by_error

_ENORMOUS = 1e4
"""No weight of a training that goes well is this large."""
_TEXTS = ("math range error", "Numerical result out of range")


class NumberBeyondPython(Rule[FailedStep]):
    """The script computes with a number it read from a tensor, and python's own arithmetic cannot hold the result.

    ## What it finds
    An OverflowError of python ("math range error") that ends the script, in a run where no tensor was NaN or Inf.

    ## Why it is bad
    It is the printing that fails, not the training: the perplexity `math.exp(loss)` overflows as soon as the loss is
    beyond 709. The loss is still finite then, but a run whose loss is that large had diverged before. Where a weight is
    enormous too, the line that wrote it last is named: an update at a learning rate that is far too high.

    ## Example
    `math.exp(cur_loss)` in a log line, after an update at a learning rate that was far too high

    ## The fix
    Look at the loss of the steps before, and at the learning rate they were made with. For the log line itself:
    `math.exp(min(loss, 700))`.

    ## The popular fix that does not work
    Catching the OverflowError: the log line is there, and the training is as lost as before.

    ## References
    Python documentation, math.exp (OverflowError)
    """

    code = "NUM030"
    name = "number-beyond-python"
    cause = "SECONDARY_ERROR"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        failure = only_an_error(subject)
        if failure is None or failure.kind != "OverflowError" or not any(t in failure.text for t in _TEXTS):
            return
        weight = subject.largest_weight
        if weight is not None and weight.magnitude > _ENORMOUS and weight.written.line:
            line = weight.written.line
            yield self.finding(
                f"{weight.name} holds values up to {weight.magnitude:.3g}: the update at line {line} moved it there; "
                f"then python could not hold a number that line {failure.place.line} computes",
                fix=f"lower the learning rate of the update at line {line}; a usual one is between 1e-5 and 1",
                evidence={"parameter": weight.name, "magnitude": weight.magnitude, "error": failure.text},
                place=weight.written,
                depth=Depth.BIRTH,
                cause="LR_DIVERGENCE",
            )
            return
        yield self.finding(
            f"python cannot hold a number that line {failure.place.line} computes; no tensor was NaN or Inf, so a "
            "value that is only enormous came from the training",
            fix="look at the loss before this line, and at the learning rate: a loss beyond 709 has diverged",
            **told_by_error(failure),
        )
