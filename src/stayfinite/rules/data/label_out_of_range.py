"""DAT013: a label or index outside of its legal range."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import at, behind, births_by_weight, facts, tensors

_TEXTS = (
    "is out of bounds",
    "index out of range",
    "Class values must be",
    "indices should be",
    "out of bounds for dimension",
    "all elements of target should be between 0 and 1",
    "device-side assert",
    "expected to be in range of",
    "is out of range",
    "should be in the range",
)
_INDEXED = ("nll_loss", "nll_loss2d", "cross_entropy", "cross_entropy_loss", "nll_loss_nd", "embedding", "gather",
            "index_select", "one_hot", "scatter", "index", "embedding_bag", "binary_cross_entropy", "take_along_dim",
            "ctc_loss", "multi_margin_loss", "nll_loss_2d", "multilabel_margin_loss")  # fmt: skip
_LABELLED = (
    "nll_loss",
    "nll_loss2d",
    "cross_entropy",
    "cross_entropy_loss",
    "one_hot",
    "binary_cross_entropy",
)


class LabelOutOfRange(Rule[FailedStep]):
    """A label or index lies outside of the range that the op allows.

    ## What it finds
    Targets of cross_entropy or nll_loss outside of 0..C-1 (and not ignore_index), indices beyond an embedding or
    a gathered dimension, probabilities as targets outside of 0..1; with the smallest and largest value seen.

    ## Why it is bad
    On the CPU it is an IndexError, on CUDA an assert that kills the process without a line, in some libraries
    plain garbage memory and NaN.

    ## Example
    Labels 1..C for a head of C outputs; `ignore_index=-100` in the data and `-1` in the loss

    ## The fix
    Validate once, before training: `assert 0 <= y.min() and y.max() < num_classes`; shift or map the labels.

    ## The popular fix that does not work
    A larger output layer: one class is then never trained and every class is off by one.

    ## References
    VladimirLi/tfVideoResearch#9
    """

    code = "DAT013"
    name = "label-out-of-range"
    cause = "LABEL_INVALID"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if behind(birth) not in _INDEXED or not birth.fact("invalid"):
                continue
            low, high, size = (birth.facts.get(name) for name in ("index_min", "index_max", "size"))
            labels = behind(birth) in _LABELLED
            yield self.finding(
                f"{behind(birth)}: {int(birth.fact('invalid'))} {'labels' if labels else 'indices'} outside of "
                f"0..{_last(size)} (they run from {low} to {high})",
                fix=f"map labels to 0..{_last(size)} and assert their range before training",
                evidence={
                    "inputs": tensors(*birth.operands),
                    **facts(birth, "index_min", "index_max", "size", "invalid"),
                },
                confidence=(0.97 if labels else 0.85) * weight,
                **at(birth),
            )
            return
        failure = subject.failure
        if failure is None or (subject.births and subject.births[0].transition != "raised"):
            return
        if any(text in failure.text for text in _TEXTS) and failure.kind in (
            "IndexError",
            "RuntimeError",
            "AcceleratorError",
        ):
            yield self.finding(
                f"a label or index is out of range: {failure.text.strip().splitlines()[0]}",
                fix="assert 0 <= y.min() and y.max() < num_classes before training; map labels to 0..C-1",
                evidence={"error": failure.text},
                confidence=0.85,
                file=failure.place.file,
                line=failure.place.line,
            )


def _last(size: object) -> object:
    return size - 1 if isinstance(size, int) else "?"
