"""NUM005: a mean over no elements."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import first_line, judged, only_an_error, told, told_by_error

_ERRORS = ("non-empty TensorList", "numel() == 0", "tensor with no elements", "non-empty list of Tensors")


class MeanOverNothing(Rule[FailedStep]):
    """A mean was taken over nothing: an empty tensor, or a loss in which every label is ignored.

    ## What it finds
    mean, median, var and similar reductions over zero elements, and nll_loss or cross_entropy with
    `reduction="mean"` in which no label is valid.

    ## Why it is bad
    It is 0/0, NaN. With cross_entropy the gradients are exactly 0 at the same time, so the weights survive and the
    NaN goes on into averages and logs; with a mean written by hand the gradients are NaN too.

    ## Example
    `F.cross_entropy(logits, labels, ignore_index=-100)` where truncation left only prompt tokens (-100)

    ## The fix
    Filter samples that have no target, and take `sum() / count.clamp(min=1)` so that an empty set weighs nothing.

    ## The popular fix that does not work
    Another dtype or batch size: a larger batch makes the empty case rarer at best.

    ## References
    microsoft/LMOps#38
    """

    code = "NUM005"
    name = "mean-over-nothing"
    cause = "EMPTY_REDUCTION"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.EMPTY_REDUCTION):
            op, operand = behind(born.birth), born.how.operand
            shape = list(operand.summary.shape) if operand is not None else "unknown"
            message, fix = {
                "labels": (
                    f"{op} has no valid label: all of them are ignored",
                    "drop samples without a target; use reduction='sum' and divide by count.clamp(min=1)",
                ),
                "weights": (
                    f"{op} divides by the weights of the labels in the batch, and they sum to 0",
                    "give every class that occurs a positive weight",
                ),
                "elements": (
                    f"{op} over nothing: its input has shape {shape}",
                    "return a zero that keeps the graph (x.sum() * 0) when the set is empty, or filter such samples",
                ),
            }[born.how.word]
            yield self.finding(message, fix=fix, **told(born, "valid", "empty", "n"))
        failure = only_an_error(subject)
        if failure is not None and (
            failure.kind == "ZeroDivisionError" or any(text in failure.text for text in _ERRORS)
        ):
            yield self.finding(
                f"a reduction over nothing: {first_line(failure)}",
                fix="handle the empty case before the reduction, or filter such samples",
                **told_by_error(failure),
            )
