"""NUM014: a vector of norm zero was normalised."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import at, behind, births_by_weight, counted, divisor_of, facts, span, tensors

_NORMS = ("linalg_vector_norm", "norm", "linalg_norm", "frobenius_norm", "vector_norm", "norm_except_dim",
          "linalg_matrix_norm")  # fmt: skip
_DIVIDING = ("div", "rsqrt", "reciprocal", "cosine_similarity")
_BY_NODE = ("div", "mul", "rsqrt", "reciprocal", "clamp_min", "cosine_similarity", *_NORMS)

_LAYERS = ("native_layer_norm", "native_group_norm", "native_batch_norm", "rms_norm", "fused_rms_norm",
           "weight_norm_interface", "weight_norm", "batch_norm")  # fmt: skip


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
    Gradient clipping: the norm is dominated by the one row, so all other gradients are scaled to nothing.
    `nan_to_num` after the division leaves the gradient as it is.

    ## References
    pytorch/pytorch#184575
    """

    code = "NUM014"
    name = "zero-vector-normalised"
    cause = "NORMALIZE_ZERO_VECTOR"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if behind(birth) in _LAYERS:
                yield from self._layer(birth, weight)
                continue
            allowed = _BY_NODE if birth.phase == "backward" else _DIVIDING
            if behind(birth) not in allowed:
                continue  # in the gradient of a root the division by zero is the root's own
            norm = _norm_divisor(birth)
            message = _too_small(birth, norm) if norm is not None else None
            if norm is None or message is None:
                continue
            optimizer = 0.45 if birth.phase == "optimizer" else 1.0
            yield self.finding(
                message,
                fix="normalise only rows that are not zero, or pass an eps that bounds the gradient: "
                "F.normalize(x, dim=-1, eps=1e-4)",
                evidence={
                    "inputs": tensors(norm),
                    **facts(birth, "zero_rows", "divisor_is", "divisor_min_abs"),
                },
                confidence=0.93 * optimizer * weight,
                **at(birth),
            )

    def _layer(self, birth: TracedBirth, weight: float) -> Iterator[Finding]:
        """Normalisation layers whose eps does not protect them, and weight normalisation, which has none."""
        if birth.transition not in ("finite->nan", "finite->inf", "amplified"):
            return
        eps = birth.scalars.get("eps")
        if isinstance(eps, float) and eps > 1e-16 and birth.transition != "amplified":
            return
        source = birth.operands[0] if birth.operands else None
        shown = f" and eps {eps:g}" if isinstance(eps, float) else ""
        yield self.finding(
            f"{behind(birth)} of a vector without length or spread{shown}: it divides by zero ({span(source)})",
            fix="use the usual eps (1e-5 or 1e-6), and do not normalise rows that are zero throughout",
            evidence={"inputs": tensors(*birth.operands), "eps": eps},
            confidence=0.88 * weight,
            **at(birth),
        )


def _too_small(birth: TracedBirth, norm: Operand) -> str | None:
    """What is wrong with the norm, in words; None when it is large enough."""
    zeros = norm.summary.zeros or int(birth.fact("zero_rows"))
    if zeros:
        return f"division by the norm of {counted(zeros, 'zero vector')} ({span(norm)})"
    inverse = norm.made_by("rsqrt", "reciprocal", within=1) is not None
    smallest = norm.smallest_positive if not inverse else (1 / norm.absmax if norm.absmax else None)
    if smallest is None or smallest > 1e-7:
        return None
    return f"division by a norm of {smallest:.2g}: the gradient is divided by it too"


def _norm_divisor(birth: TracedBirth) -> Operand | None:
    """The norm that something is divided by."""
    candidates = [divisor_of(birth), birth.saved_tensor("other", "result"), *birth.operands, *birth.saved]
    if birth.facts.get("divisor_is") == "norm":
        return next((operand for operand in candidates if operand is not None), None)
    if behind(birth) in _NORMS and birth.fact("zero_rows") and birth.phase == "backward":
        return birth.saved_tensor("result") or next(iter(birth.saved), None)
    for operand in candidates:
        if operand is None:
            continue
        if operand.made_by(*_NORMS, within=3):
            return operand
        # sqrt(sum(x * x)), possibly with an eps or a clamp on the way
        rooted = operand.made_by("sqrt", "rsqrt", within=3) and operand.made_by("sum", "mean", within=5)
        if rooted and operand.made_by("pow", "mul", "square", within=7):
            return operand
    return None
