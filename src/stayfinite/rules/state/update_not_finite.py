"""STA012: finite gradients, a bad update."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.refused_step import RefusedStep


class UpdateNotFinite(Rule[RefusedStep]):
    """The gradients were finite, and the optimizer's own update made parameters or moments NaN or Inf.

    ## What it finds
    A step whose loss and gradients were finite and after which parameters or optimizer state were not. The guard
    has undone it.

    ## Why it is bad
    No check of loss or gradients can see it, and the next forward pass is NaN everywhere.

    ## Example
    Adam on float16 parameters: eps 1e-8 is 0 there, the second moment underflows, and the first step is m / 0.

    ## The fix
    float32 parameters (or a float32 master copy) for the optimizer; an eps that exists in the dtype.

    ## The popular fix that does not work
    A lower learning rate: 0 / 0 is NaN at every rate.

    ## References
    afiaka87/glide-finetune#5
    """

    code = "STA012"
    name = "update-not-finite"
    cause = "OPTIMIZER_ZERO_DIV"
    severity = Severity.ERROR

    def check(self, subject: RefusedStep) -> Iterator[Finding]:
        if not subject.bad_update:
            return
        bad = subject.parameters + subject.moments
        half = any(tensor.dtype in ("float16", "bfloat16") for tensor in bad)
        yield self.finding(
            f"the gradients were finite (norm {subject.grad_norm:.3g}), but the optimizer's update made "
            f"{len(bad)} tensors NaN or Inf, first {bad[0].name if bad else 'unknown'}"
            if subject.grad_norm is not None
            else f"the optimizer's update made {len(bad)} tensors NaN or Inf",
            fix="let the optimizer work on float32 parameters"
            if half
            else "look at the optimizer's denominators",
            evidence={"tensors": [tensor.to_json() for tensor in bad[:5]]},
            cause="PURE_LOWP_OPTIMIZER" if half else "OPTIMIZER_ZERO_DIV",
        )
