"""STA022: updates that are rounded away in half precision."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import UpdateAudit

_LEAST_STEPS = 5
_FROZEN = 0.9


class UpdateLostToRounding(Rule[FailedStep]):
    """The optimizer steps, and the half-precision weights stay bit for bit the same.

    ## What it finds
    Audited steps in which elements with a non-zero gradient did not change at all. An error when nothing at all
    changed in nine of ten audited steps; a warning when nine of ten elements did not.

    ## Why it is bad
    bfloat16 has 8 bits: an update below 1/256 of its weight is rounded to nothing, every time. Nothing is NaN,
    the loss is flat, the gradients look healthy.

    ## Example
    `SGD(model.bfloat16().parameters(), 1e-4)` with weights near 1

    ## The fix
    float32 weights with bfloat16 autocast, a float32 master copy, stochastic rounding or Kahan summation.

    ## The popular fix that does not work
    A higher rate: it moves the small weights too far before the large ones move at all.

    ## References
    meta-pytorch/torchtune#2254
    """

    code = "STA022"
    name = "update-lost-to-rounding"
    cause = "BF16_PRECISION"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for audit in subject.run.updates:
            if audit.dtype not in ("bfloat16", "float16") or not audit.elements or _rate_was_zero(subject):
                continue
            frozen = (
                audit.audited_steps >= _LEAST_STEPS and audit.frozen_steps >= _FROZEN * audit.audited_steps
            )
            mostly = audit.unchanged >= _FROZEN * audit.elements and audit.audited_steps >= _LEAST_STEPS
            if frozen:
                severity = Severity.ERROR
                message = (
                    f"in {audit.frozen_steps} of {audit.audited_steps} audited steps no {audit.dtype} weight changed, "
                    f"although {audit.elements} of them have a gradient"
                )
            elif mostly:
                severity = Severity.WARNING
                message = (
                    f"{audit.unchanged} of {audit.elements} {audit.dtype} weights with a gradient did not change "
                    "in the last audited step"
                )
            else:
                continue
            yield self.finding(
                message,
                fix="keep float32 weights and run the forward pass under autocast, or use a float32 master copy",
                evidence=_evidence(audit),
                severity=severity,
                place=audit.place,
            )


def _rate_was_zero(step: FailedStep) -> bool:
    rates = [record.lr for record in step.run.history if record.lr is not None]
    return bool(rates) and not any(rates)


def _evidence(audit: UpdateAudit) -> dict[str, object]:
    return {
        "dtype": audit.dtype,
        "elements": audit.elements,
        "unchanged": audit.unchanged,
        "audited_steps": audit.audited_steps,
        "frozen_steps": audit.frozen_steps,
    }
