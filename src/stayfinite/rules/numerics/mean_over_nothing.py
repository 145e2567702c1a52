"""NUM005: a mean over no elements."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import at, behind, births_by_weight, facts, tensors

_LOSSES = ("nll_loss", "nll_loss2d", "nll_loss_nd", "cross_entropy", "cross_entropy_loss")

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
    Another dtype or batch size: a larger batch only makes the empty case rarer.

    ## References
    microsoft/LMOps#38
    """

    code = "NUM005"
    name = "mean-over-nothing"
    cause = "EMPTY_REDUCTION"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            op = behind(birth)
            source = birth.operands[0] if birth.operands else None
            no_label = op in _LOSSES and "valid" in birth.facts and not birth.fact("valid")
            no_weight = op in _LOSSES and birth.facts.get("weight_sum") == 0.0
            # Whatever makes NaN of no elements at all is a mean of some kind.
            no_element = birth.birth.nan > 0 and any(o.numel == 0 for o in birth.operands)
            nothing = bool(birth.facts.get("empty")) or no_element
            if no_label:
                message = f"{op} has no valid label: all of them are ignored"
                fix = "drop samples without a target; use reduction='sum' and divide by count.clamp(min=1)"
            elif no_weight:
                message = f"{op} divides by the weights of the labels in the batch, and they sum to 0"
                fix = "give every class that occurs a positive weight"
            elif nothing:
                shape = list(source.summary.shape) if source is not None else "unknown"
                message = f"{op} over nothing: its input has shape {shape}"
                fix = "return a zero that keeps the graph (x.sum() * 0) when the set is empty, or filter such samples"
            else:
                continue
            yield self.finding(
                message,
                fix=fix,
                evidence={"inputs": tensors(*birth.operands), **facts(birth, "valid", "empty", "n")},
                confidence=0.95 * weight,
                **at(birth),
            )
        failure, first = subject.failure, subject.birth
        if failure is None or (first is not None and first.transition != "raised"):
            return
        if failure.kind == "ZeroDivisionError" or any(text in failure.text for text in _ERRORS):
            said = failure.text.strip().splitlines()[0] if failure.text.strip() else failure.kind
            yield self.finding(
                f"a reduction over nothing: {said}",
                fix="handle the empty case before the reduction, or filter such samples",
                evidence={"error": failure.text},
                confidence=0.85,
                file=failure.place.file,
                line=failure.place.line,
            )
