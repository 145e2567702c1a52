"""NUM014: a vector of norm zero was normalised."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, judged, span, told

_BY_ROWS = (
    "normalise only rows that are not zero, or pass an eps that bounds the gradient: "
    "F.normalize(x, dim=-1, eps=1e-4)"
)
_OF_DATA = (
    "find out why these vectors are 0 where they are read (something that was never filled in), and leave them out; "
    "where zero is legal, F.normalize(x, dim=-1) gives 0 for it"
)
_ALL_LEARNT = (
    "every one of these vectors is 0, and the model makes them: probably a layer that begins at 0. Put the eps under "
    "the root, ((x * x).sum(-1) + 1e-12).sqrt(), so that they have a gradient; a floor under the norm behind it, as "
    "that of F.normalize, may leave them at 0 for ever"
)
_BY_ONE_NUMBER = (
    "leave the division out where that norm is 0, or put a floor under it that usual norms never reach: "
    "norm.clamp_min(1e-6)"
)


class ZeroVectorNormalised(Rule[FailedStep]):
    """A vector of norm zero was divided by its norm.

    ## What it finds
    A division by a norm that is 0 (NaN), or by its floor of 1e-12, where the gradient is then 1e12 times too
    large: finite, but enough to ruin every weight in one step.

    ## Why it is bad
    A zero vector has no direction. Padding embeddings, dead units and empty neighbourhoods are exactly zero. With
    an eps of 1e-12 the forward pass is a harmless 0 and the gradient is g / 1e-12.

    ## Example
    `F.normalize(proj(emb(ids)), dim=-1)` where padded positions embed to zero

    ## The fix
    Normalise only rows that are not padding, or use an eps that bounds the gradient (1e-6 to 1e-3).

    ## The popular fix that does not work
    Gradient clipping, where the vector is computed by the model: its gradient dominates the norm, so all others are
    scaled to nothing. `nan_to_num` after the division leaves that gradient as it is, and hides a vector of the data
    that should not be zero.

    ## References
    pytorch/pytorch#184575
    """

    code = "NUM014"
    name = "zero-vector-normalised"
    cause = "NORMALIZE_ZERO_VECTOR"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.ZERO_NORM):
            how, eps = born.how, born.how.more.get("eps")
            if how.word == "layer":
                shown = f" and eps {eps:g}" if isinstance(eps, float) else ""
                message = (
                    f"{behind(born.birth)} of a vector without length or spread{shown}: it divides by zero "
                    f"({span(how.operand)})"
                )
                fix = "use the usual eps (1e-5 or 1e-6), and do not normalise rows that are zero throughout"
            else:
                smallest = how.more.get("smallest")
                message = (
                    f"division by a norm of {smallest:.2g}: the gradient is divided by it too"
                    if smallest is not None
                    else f"division by the norm of {counted(how.count, 'zero vector')} ({span(how.operand)})"
                )
                norms = how.operand
                fix = _BY_ROWS if norms is None or norms.numel > 1 else _BY_ONE_NUMBER
                if norms is not None and norms.learnt and norms.summary.zeros == norms.numel > 1:
                    fix = _ALL_LEARNT
                elif smallest is None and norms is not None and norms.provenance == "data":
                    fix = _OF_DATA
            yield self.finding(message, fix=fix, **told(born, "zero_rows", "divisor_is", "divisor_min_abs"))
