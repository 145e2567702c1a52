"""STA025: gradients clipped by a norm that is not finite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import ClipCall


class ClipByBadNorm(Rule[FailedStep]):
    """Gradients were clipped by a norm that is NaN or Inf, which spreads the damage to all of them.

    ## What it finds
    `clip_grad_norm_` with a total norm that is not finite and `error_if_nonfinite=False`, where a GradScaler does
    not skip the step.

    ## Why it is bad
    With one NaN every gradient becomes NaN. With one Inf that gradient becomes NaN and all others exactly 0. Finite
    gradients whose norm overflows all become 0. Afterwards nobody can tell which parameter began it.

    ## Example
    `nn.utils.clip_grad_norm_(params, 1.0); opt.step()` with an infinite gradient in one parameter

    ## The fix
    `clip_grad_norm_(..., error_if_nonfinite=True)`, or skip the step when the returned norm is not finite; repair
    the birth that is reported beside this.

    ## The popular fix that does not work
    A smaller max_norm: inf / inf is NaN for every limit.

    ## References
    pytorch/pytorch#46849
    """

    code = "STA025"
    name = "clip-by-bad-norm"
    cause = "CLIP_NONFINITE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if subject.run.scalers:
            return  # an overflow in a scaled step is skipped by the scaler, and clipping is harmless
        if subject.trigger == "loss" and not subject.births:
            return  # the loss was bad before there was a norm, and why is not known
        for clip in subject.run.clips:
            if not clip.nonfinite_norms or clip.error_if_nonfinite or clip.raised:
                continue
            later = not subject.run.complete and clip.first_bad is not None and clip.first_bad > subject.step
            if later:
                continue  # what followed the failing step where nothing was refused: a second, traced run
            yield self.finding(
                f"{_which(subject, clip)} clipped by a norm that is not finite"
                + (": finite gradients were zeroed or made NaN with the bad ones" if clip.mixed else ""),
                fix="pass error_if_nonfinite=True, or skip the step when the returned norm is not finite",
                evidence={
                    "norm": clip.norm,
                    "max_norm": clip.max_norm,
                    "mixed": clip.mixed,
                    "calls": clip.calls,
                },
                # Where a birth explains the bad gradient, clipping only spread it.
                depth=Depth.CONSEQUENCE if subject.births else Depth.RUN,
                place=clip.place,
            )


def _which(step: FailedStep, clip: ClipCall) -> str:
    """Of a step that failed the calls until then: those after it are counted only in a run that is over."""
    if step.run.complete or clip.first_bad is None:
        return f"{clip.nonfinite_norms} of {clip.calls} calls"
    return f"at step {clip.first_bad} the gradients were"
