"""SRC034: a CTC loss that is infinite for a target that does not fit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile, Value
from stayfinite.rules.source.phrases import at, evidence, level


class CtcWithoutZeroInfinity(Rule[SourceFile]):
    """A CTC loss has no zero_infinity and nothing checks that the targets fit into the frames.

    ## What it finds
    `F.ctc_loss` or `nn.CTCLoss` without `zero_infinity=True`, in a function that does not compare lengths.
    Where lengths and labels are written in the source, only those that do not fit are reported.

    ## Why it is bad
    A target needs one frame a label and one more for every repeated label. One sample with too few frames
    makes the loss of the batch infinite.

    ## Example
    `F.ctc_loss(log_probs, targets, input_lengths, target_lengths)`

    ## The fix
    Filter: input length >= target length + number of repeats; and `zero_infinity=True` for what slips
    through.

    ## The popular fix that does not work
    Checking only that input length >= target length: "hello" needs 6 frames.

    ## References
    mozilla/DeepSpeech#1941; torch.nn.CTCLoss (zero_infinity)
    """

    code = "SRC034"
    name = "ctc-without-zero-infinity"
    cause = "CTC_INFEASIBLE"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        compares = re.search(r"(length|len)\w*\W*\s*[<>]=?\s*\w*", subject.text)
        for operation in subject.named("ctc_loss"):
            given = operation.option("zero_infinity", 6)
            if given is not None and given.const is not False:
                continue
            needed, frames = _needed(operation), _frames(operation)
            if needed is not None and frames is not None:
                if needed <= frames:
                    continue
                message = f"the target needs {needed} frames (labels and repeats), and there are {frames}"
            elif compares:
                continue
            else:
                message = (
                    "no zero_infinity, and nothing here checks that targets fit: one short "
                    "sample makes the loss infinite"
                )
            yield self.finding(
                message,
                fix="filter samples with input length < target length + repeats, and pass zero_infinity=True",
                evidence={**evidence(operation), "needed": needed, "frames": frames},
                severity=level(operation, self.severity if needed is None else Severity.ERROR),
                **at(subject, operation),
            )


def _needed(operation: Operation) -> int | None:
    """Frames that the longest target written in the source needs."""
    target = operation.option("targets", 1)
    rows = target.reference if target is not None else None
    if not isinstance(rows, Value) or not rows.items:
        return None
    needs = []
    for row in rows.items if rows.items[0].items else (rows,):
        labels = [item.number for item in row.items or ()]
        if not labels or None in labels:
            return None
        needs.append(len(labels) + sum(a == b for a, b in itertools.pairwise(labels)))
    return max(needs)


def _frames(operation: Operation) -> int | None:
    lengths = operation.option("input_lengths", 2)
    if lengths is None or not lengths.known or lengths.low != lengths.high or abs(lengths.low) > 1e9:
        return None
    return int(lengths.low)
