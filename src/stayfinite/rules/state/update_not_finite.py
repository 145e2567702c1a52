"""STA012: finite gradients, a bad update."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, judged, span, told

_FIX = (
    "look at the optimizer's denominators: torch.where(d > 0, n / d.clamp_min(1e-12), 1.0); keep eps above 0"
)


class UpdateNotFinite(Rule[FailedStep]):
    """The gradients were finite, and the optimizer's own update made parameters or moments NaN or Inf.

    ## What it finds
    A step whose loss and gradients were finite and after which parameters or optimizer state were not (a guard has
    undone it); where it was followed op by op, the division by zero inside the optimizer.

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

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        kind = subject.run.optimizers[0].kind if subject.run.optimizers else "the optimizer"
        for born in judged(subject, Kind.OPTIMIZER_DIVISION):
            yield self.finding(
                f"{kind} divided by {counted(born.how.count, 'zero')} in {born.birth.op} "
                f"({span(born.how.operand)}), with "
                "finite gradients",
                fix=_FIX,
                **told(born, "denominator_zeros", "zero_divisors"),
            )
        bad = [t for t in subject.state if t.owner in ("parameter", "optimizer state") and not t.before]
        if not subject.bad_update or subject.births or (subject.state and not bad):
            return
        half = any(tensor.dtype in ("float16", "bfloat16") for tensor in bad)
        norm = f" (norm {subject.grad_norm:.3g})" if subject.grad_norm is not None else ""
        yield self.finding(
            f"the gradients were finite{norm}, but the optimizer's update made {counted(len(bad), 'tensor')} "
            f"NaN or Inf, first {bad[0].name if bad else 'unknown'}",
            fix="let the optimizer work on float32 parameters" if half else _FIX,
            evidence={"tensors": [{"name": t.name, "nan": t.nan, "inf": t.inf} for t in bad[:5]]},
            cause="PURE_LOWP_OPTIMIZER" if half else "OPTIMIZER_ZERO_DIV",
            depth=Depth.BIRTH,
        )
