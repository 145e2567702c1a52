"""LOG006: a loss scale that keeps falling."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Happening, Log, Role
from stayfinite.rules.log.story import place, when

_COLLAPSED = 1.0
_IN_A_ROW = 8


class FallingScale(Rule[Log]):
    """The loss scale fell again and again without growing, or below 1.

    ## What it finds
    A logged loss scale that ends below 1, or that fell at least eight times after it last grew, at the end of the log.
    Falls at the start of a run, and single falls in between, are how a GradScaler works.

    ## Why it is bad
    A scaler halves its scale when gradients overflow. When the *forward* pass overflows no scale helps: every step is
    skipped, the scale goes to 0 after about 166 of them, and the next clean batch gives 0 * inf = NaN weights.

    ## Example
    65536, 32768, 16384, ... 0.0078, with a loss of NaN or a loss that does not move

    ## The fix
    Find the forward overflow (`stayfinite run`), use bfloat16 or a float32 island there, and give the scale a floor.

    ## The popular fix that does not work
    A minimum scale of 1e-10, or a fixed scale: the overflow stays, only its sign in the log is gone.

    ## References
    deepspeedai/DeepSpeed#931; torch.amp.GradScaler
    """

    code = "LOG006"
    name = "loss-scale-keeps-falling"
    cause = "LOSS_SCALE_COLLAPSE"
    severity = Severity.ERROR

    def check(self, subject: Log) -> Iterator[Finding]:
        for series in subject.of_role(Role.SCALE):
            last = series.last
            falls = [h for h in subject.kept("scale-fell") if h.series == series.name]
            if last is None or not falls:
                continue
            row = _row_at_end(falls)
            grew_again = last.value > row[-1].point.value
            if last.value >= _COLLAPSED and (len(row) < _IN_A_ROW or grew_again):
                continue
            start = row[0]
            yield self.finding(
                f"{series.name} fell {len(row)} times, from {start.usual:g} at {when(subject, start.point)} to "
                f"{last.value:g} at {when(subject, last)}, and did not grow again",
                fix="find what overflows in the forward pass (stayfinite run); bfloat16 or a float32 island there",
                evidence={"series": series.name, "from": start.usual, "to": last.value, "falls": len(falls),
                          "since_step": start.point.step},
                **place(subject, start.point),
            )  # fmt: skip


def _row_at_end(falls: list[Happening]) -> list[Happening]:
    """The falls at the end that no growth interrupts: each starts where the last one ended."""
    row: list[Happening] = []
    for fall in reversed(falls):
        if row and fall.point.value != row[0].usual:
            break
        row.insert(0, fall)
    return row
