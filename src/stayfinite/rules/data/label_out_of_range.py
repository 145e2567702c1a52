"""DAT013: a label or index outside of its legal range."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import first_line, judged, only_an_error, told, told_by_error

_TEXTS = (
    "is out of bounds", "index out of range", "Class values must be", "indices should be",
    "out of bounds for dimension", "device-side assert",
    "expected to be in range of", "is out of range", "should be in the range",
)  # fmt: skip
_LOOKED_UP = "index out of range in self"  # what an embedding says, and index_select
_TABLE = (
    "compare the largest index in the data with the rows of the table: num_embeddings must cover every id that the "
    "tokenizer or vocabulary gives (special tokens and padding too), and the sequence length every position"
)
_LABELS = "assert 0 <= y.min() and y.max() < num_classes before training; map labels to 0..C-1"


class LabelOutOfRange(Rule[FailedStep]):
    """A label or index lies outside of the range that the op allows.

    ## What it finds
    Targets of cross_entropy or nll_loss outside of 0..C-1 (and not ignore_index), indices beyond an embedding or
    a gathered dimension; with the smallest and largest value seen. (Targets of a binary cross entropy: DAT015.)

    ## Why it is bad
    On the CPU it is an IndexError, on CUDA an assert that kills the process without a line, in some libraries
    plain garbage memory and NaN.

    ## Example
    Labels 1..C for a head of C outputs; `ignore_index=-100` in the data and `-1` in the loss

    ## The fix
    Validate once, before training: `assert 0 <= y.min() and y.max() < num_classes`; shift or map the labels.

    ## The popular fix that does not work
    A larger output layer or table without knowing why: what was out of range then trains a row that stands for
    nothing, and labels that began at 1 stay off by one.

    ## References
    VladimirLi/tfVideoResearch#9
    """

    code = "DAT013"
    name = "label-out-of-range"
    cause = "LABEL_INVALID"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.INDEX_INVALID):
            facts = born.birth.facts
            size = facts.get("size")
            last = size - 1 if isinstance(size, int) else "?"
            yield self.finding(
                f"{behind(born.birth)}: {born.how.count} {born.how.word} outside of 0..{last} (they run from "
                f"{facts.get('index_min')} to {facts.get('index_max')})",
                fix=f"map labels to 0..{last} and assert their range before training",
                **told(born, "index_min", "index_max", "size", "invalid"),
            )
            return
        failure = only_an_error(subject)
        if failure is None or failure.kind not in ("IndexError", "RuntimeError", "AcceleratorError"):
            return
        if any(text in failure.text for text in _TEXTS):
            looked_up = _LOOKED_UP in failure.text
            yield self.finding(
                f"{'an index is beyond its table' if looked_up else 'a label or index is out of range'}: "
                f"{first_line(failure)}",
                fix=_TABLE if looked_up else _LABELS,
                **told_by_error(failure),
            )
