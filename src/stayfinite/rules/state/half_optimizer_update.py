"""STA021: an optimizer's update went bad in half precision."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, told

_FIX = "keep float32 parameters (autocast and a GradScaler), or an optimizer with a float32 master copy"


class HalfOptimizerUpdate(Rule[FailedStep]):
    """Finite gradients, and the optimizer's own arithmetic in half precision made NaN or Inf of them.

    ## What it finds
    A birth inside an optimizer step on float16 or bfloat16 parameters: the second moment underflowed to 0 and eps
    is 0 in the dtype (or the square of a gradient overflowed). Also moments that overflowed to Inf and are divided
    by ever since: everything is finite, and those weights stand still.

    ## Why it is bad
    In float16 the square of a gradient below 2e-4 is 0, and 1e-8 is 0 too, so the update is m / 0. No check of
    loss or gradients sees it, the weights are gone after one step.

    ## Example
    `Adam(model.half().parameters(), 1e-3)`

    ## The fix
    float32 parameters with autocast and a GradScaler, or an optimizer that keeps a float32 master copy; bfloat16
    with float32 moments.

    ## The popular fix that does not work
    `eps=1e-4`: no NaN, but it is larger than most sqrt(v): an adaptive optimizer becomes SGD with a strange rate.

    ## References
    afiaka87/glide-finetune#5
    """

    code = "STA021"
    name = "half-optimizer-update"
    cause = "PURE_LOWP_OPTIMIZER"
    severity = Severity.ERROR
    more_specific_than = ("STA012", "STA011")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        half = [
            o for o in subject.run.optimizers if {"float16", "bfloat16"} & {*o.param_dtypes, *o.state_dtypes}
        ]
        kind = half[0].kind if half else "the optimizer"
        for born in judged(subject, Kind.HALF_UPDATE):
            birth, zeros = born.birth, born.how.count
            eps = next((o.eps for o in half if o.eps_in_dtype == 0.0), None)
            lost = f"; its eps {eps:g} is 0 there" if eps is not None else ""
            denominators = f" with {zeros} denominators of 0" if zeros else ""
            yield self.finding(
                f"{kind} worked in {birth.dtype}{denominators}{lost}: {birth.op} made "
                f"{birth.birth.nan} NaN and {birth.birth.inf} Inf of finite gradients",
                fix=_FIX,
                **told(born, "denominator_zeros", "zero_divisors", eps=eps, optimizer=kind),
            )
        overflown = [
            t
            for t in subject.state
            if t.owner == "optimizer state" and t.dtype == "float16" and t.inf and not t.nan
        ]
        if overflown and not subject.births and not any(t.owner == "parameter" for t in subject.state):
            first = overflown[0]
            yield self.finding(
                f"{first.name} of {kind} overflowed to Inf in {first.dtype} ({first.inf} of {first.numel} values), the "
                "weights are finite: what is divided by it is 0, and these weights never move again",
                fix=_FIX,
                evidence={"tensor": first.name, "inf": first.inf, "optimizer": kind},
                depth=Depth.UPSTREAM,
                place=first.place,
            )
