"""RUN020: finite gradients whose norm is beyond the range of float32."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep

_ENORMOUS = 1e6
"""Inputs beyond this are what the gradients are multiplied by; ordinary data is within a few thousand."""


class GradientNormOverflow(Rule[FailedStep]):
    """Every gradient is finite, but their squares add up to more than float32 holds, so the norm is Inf.

    ## What it finds
    A refused step without a single NaN or Inf in a gradient, whose norm is not finite. It names the parameter with
    the largest gradient, and the largest value of the batch where a guard saw it.

    ## Why it is bad
    Clipping divides by this norm, so a clipped update is zero. Adam squares the same numbers, so its second moment
    becomes Inf and the parameter never moves again. Nothing of it is NaN, so no check for NaN fires.

    ## Example
    A gradient of 1e20: its square is 1e40, and the largest float32 is 3.4e38

    ## The fix
    Find out why the gradient is that large: inputs that were never normalised, a sum where a mean is meant, a division
    by a number next to zero. Bring that to order; a step like this one is better left out than clipped.

    ## The popular fix that does not work
    Clipping: max_norm / Inf is 0, so the step is thrown away silently, and without clipping it is applied.

    ## References
    torch documentation, torch.nn.utils.clip_grad_norm_ (error_if_nonfinite)
    """

    code = "RUN020"
    name = "gradient-norm-overflow"
    cause = "UNKNOWN"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if not subject.norm_overflowed:
            return
        born = subject.birth.birth if subject.birth is not None else None  # where values became this large
        name, size = subject.largest_gradient or ("", None)
        seen = size is not None and size > 0  # not where the script had clipped it to nothing
        of = f"; the largest is {size:.3g}, of {name}" if seen else ""
        clip = next((c.place for c in subject.run.clips if c.nonfinite_norms), None)
        inputs = subject.batch_absmax
        from_data = inputs is not None and inputs > _ENORMOUS
        yield self.finding(
            f"every gradient is finite, and the sum of their squares is beyond float32: their norm comes out as Inf{of}"
            + (f"; the batch holds values up to {inputs:.3g}" if from_data else ""),
            fix="normalise the inputs, or leave such batches out"
            if from_data
            else "find out what makes the gradient this large: inputs out of scale, a sum instead of a mean, a "
            "division by next to nothing",
            evidence={"parameter": name, "largest_gradient": size, "largest_input": inputs},
            cause="DATA_SCALE" if from_data else None,
            file=born.file if born is not None else clip.file if clip is not None else None,
            line=born.line if born is not None else clip.line if clip is not None else None,
        )
