"""STA026: an optimizer that divides by zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import DIVISIONS, at, births_by_weight, divisor_of, facts, span, tensors

_UPDATES = (*DIVISIONS, "sqrt", "pow", "mul", "add", "lerp", "norm", "linalg_vector_norm")


class OptimizerDividesByZero(Rule[FailedStep]):
    """The gradients were finite, and a division by zero inside the optimizer made the update NaN or Inf.

    ## What it finds
    A birth inside an optimizer step in float32 whose divisor is 0: the norm of a zero update or weight (trust
    ratios), a second moment of 0 without eps, a bias correction with beta 1.

    ## Why it is bad
    Zero gradients are ordinary: unused embeddings, frozen branches, zero-initialised layers. The first step with
    one makes the weights NaN although nothing was wrong with the loss.

    ## Example
    `update * (w.norm() / update.norm())` for a parameter whose gradient is 0; `Adam(eps=0)`

    ## The fix
    Guard the ratio, `torch.where(norm > 0, w_norm / norm.clamp_min(1e-12), 1.0)`, and keep eps above 0.

    ## The popular fix that does not work
    Initialising everything to non-zero values: a gradient of zero needs no zero weight.

    ## References
    mosaicml/composer#967, tinygrad/tinygrad#15724
    """

    code = "STA026"
    name = "optimizer-divides-by-zero"
    cause = "OPTIMIZER_ZERO_DIV"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if birth.phase != "optimizer" or birth.op not in _UPDATES or birth.transition == "outside":
                continue
            divisor = divisor_of(birth)
            zeros = int(birth.fact("denominator_zeros") or birth.fact("zero_divisors"))
            zeros = zeros or (divisor.summary.zeros if divisor is not None and birth.op in DIVISIONS else 0)
            if not zeros:
                continue
            kind = subject.optimizers[0].kind if subject.optimizers else "the optimizer"
            half = birth.is_half
            yield self.finding(
                f"{kind} divided by {zeros} zeros in {birth.op} ({span(divisor)}), with finite gradients",
                fix="guard the quotient: torch.where(d > 0, n / d.clamp_min(1e-12), 1.0); keep eps above 0",
                evidence={
                    "inputs": tensors(*birth.operands),
                    **facts(birth, "denominator_zeros", "zero_divisors"),
                },
                confidence=(0.7 if half else 0.95) * weight,
                **at(birth),
            )
