"""NUM012: a CTC target that does not fit into its frames."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, told


class CtcInfeasible(Rule[FailedStep]):
    """A CTC target needs more frames than the input has, so no alignment exists and the loss is infinite.

    ## What it finds
    ctc_loss with samples whose frames are fewer than labels plus repeats (two equal labels in a row need a blank
    between them), and samples without any frame.

    ## Why it is bad
    The probability of an impossible alignment is 0, its loss infinite, the gradient NaN: one such sample poisons
    the batch.

    ## Example
    The word "hello" (5 labels, one repeat, so 6 frames) with 5 frames of output

    ## The fix
    Filter with frames >= labels + repeats, or downsample less. `zero_infinity=True` drops such samples from loss
    and gradient; count them, they are not learnt.

    ## The popular fix that does not work
    Checking only frames >= labels: it forgets the repeats. A lower learning rate changes nothing.

    ## References
    mozilla/DeepSpeech#1941
    """

    code = "NUM012"
    name = "ctc-infeasible"
    cause = "CTC_INFEASIBLE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.CTC_INFEASIBLE):
            facts = born.birth.facts
            yield self.finding(
                f"ctc_loss: {born.how.count} sample(s) need more frames than they have (labels plus repeats: "
                f"{facts.get('needed')}, frames: {facts.get('input_lengths')})",
                fix="keep samples with frames >= labels + repeats; zero_infinity=True drops the others, count them",
                **told(born, "input_lengths", "target_lengths", "needed", "infeasible"),
            )
