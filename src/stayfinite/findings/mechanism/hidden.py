"""Bad values that the forward pass hides and the gradient brings back; zeros that meet infinities."""

from __future__ import annotations

import math

from stayfinite.findings.mechanism.kind import Kind, Mechanism
from stayfinite.findings.mechanism.operands import (
    CLAMPS,
    LARGEST,
    SANITISERS,
    behind,
    by_autograd,
    looks_like_mask,
    reaches,
)
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth

_SELECTIONS = ("index", "masked_select", "slice", "select", "gather")
_PRODUCTS = ("mul", "mm", "bmm", "matmul", "addmm", "baddbmm", "dot", "mv", "einsum", "convolution", "addcmul",
             "scaled_dot_product_attention", "scaled_dot_product_flash_attention_for_cpu", "sum", "linear",
             "scaled_dot_product_attention_math", "lerp")  # fmt: skip
_LOGARITHMS = ("log", "log2", "log10", "log_softmax", "_log_softmax", "logsigmoid", "log_sigmoid_forward")
_FAR = 12
_SOFTMAX = ("softmax", "logsumexp", "attention", "log_softmax")


def behind_a_where(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A where (or the like) left the value out of the forward pass."""
    if not _in_gradient(step):
        return None
    for producer in birth.hidden_by:
        if producer.name in SANITISERS and producer.name not in _SELECTIONS and "softmax" not in birth.op:
            return Mechanism(Kind.HIDDEN, word=f"{producer.name} (line {producer.line})")
    # Finite in the forward pass, as the root of 0 is. It was left out if the gradient that came down to it is 0.
    if birth.phase == "backward" and birth.forward_op is not None:
        for below in (birth, *(b for b in step.births if b.follows and b.birth.line == birth.birth.line)):
            gradient = next((o for o in below.operands if o.in_backward), None)
            if gradient is None or not below.fact("unselected") or below.fact("selected"):
                continue
            made = gradient.made_by("where", "masked_fill", within=5)
            if made is not None:
                return Mechanism(Kind.HIDDEN, word=f"{made.name} (line {made.line})")
    return None


def behind_anything(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A selection or a clamp left the value out; the last resort, for the op has no better name."""
    if not _in_gradient(step):
        return None
    for producer in birth.hidden_by:
        if producer.name in (*SANITISERS, *_SELECTIONS):
            return Mechanism(Kind.HIDDEN, word=f"a selection (line {producer.line})")
        if producer.name in CLAMPS and birth.phase != "backward":
            return Mechanism(Kind.HIDDEN, word=f"{producer.name} (line {producer.line})")
    return None


def mask(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """Additive masks that overflow, are multiplied, or have the wrong sign, on their way to a softmax."""
    return mask_without_softmax(step, birth) if reaches(step, *_SOFTMAX) else None


def mask_without_softmax(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """The same where no softmax follows: weaker evidence, so other names come first."""
    if by_autograd(birth):
        return None
    overflown, mistake = _overflowing_mask(birth), _mistake(birth)
    if overflown is not None and (overflown.provenance != "hidden" or reaches(step, *_SOFTMAX)):
        return Mechanism(Kind.MASK_OVERFLOW, overflown, birth.birth.inf)
    if mistake is None:
        return None
    more = {"of_logarithms": True} if is_masked_difference(birth) else {}
    return Mechanism(Kind.MASK_OF_INFINITY, word=mistake, more=more)


def mask_in_the_loss(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A mask of -inf that did its work in a softmax, and then took part in what is summed up."""
    written = birth.output
    if birth.transition != "deliberate" or birth is not step.birth or written is None:
        return None
    if written.summary.nan or written.posinf or not written.neginf or not reaches(step, *_SOFTMAX):
        return None
    if any(not tensor.finite for tensor in step.batch):
        return None  # it is data
    by = "a label is among them" if reaches(step, "nll_loss") else "something sums over them, too"
    return Mechanism(
        Kind.MASK_OF_INFINITY,
        written,
        written.neginf,
        f"{written.neginf} masked values of -inf reached the loss itself: {by}",
        {"in_loss": True},
    )


def infinity_as_the_loss(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A tensor full of infinity, written as "no way yet" or "nothing found yet", that nothing took the place of."""
    written = birth.output
    if birth.transition != "deliberate" or birth is not step.birth or written is None:
        return None
    lost = step.sink.summary if step.sink is not None and step.sink.kind == "loss" else None
    if lost is None or lost.nan or len(step.births) > 1:
        return None  # a NaN was made of it, or of something else
    if written.summary.nan or written.summary.inf != written.numel:
        return None
    if any(not one.finite for one in step.batch):
        return None  # it is data
    count = written.summary.inf
    return Mechanism(
        Kind.MASK_OF_INFINITY,
        written,
        count,
        f"the script fills {count} {'value' if count == 1 else 'values'} with infinity here, and nothing finite took "
        "their place: they are in the loss",
        {"as_the_loss": True},
    )


def is_masked_difference(birth: TracedBirth) -> bool:
    """log p - log q, both of the same masked positions: -inf minus -inf."""
    if birth.op != "sub" or birth.phase == "backward" or len(birth.operands) != 2:
        return False
    logs = [operand.made_by(*_LOGARITHMS, within=_FAR) for operand in birth.operands]
    return bool(birth.fact("inf_minus_inf")) and all(logs) and not any(o.posinf for o in birth.operands)


def zero_times_infinity(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A product in which a zero meets NaN or Inf."""
    if behind(birth) not in _PRODUCTS or not birth.fact("zero_times_bad"):
        return None
    # What a gradient is multiplied with is whatever the forward pass held: zeros of the batch are no mask.
    masked = not by_autograd(birth) and any(looks_like_mask(operand) for operand in birth.operands)
    return Mechanism(
        Kind.ZERO_TIMES_INF, count=int(birth.fact("zero_times_bad")), word="mask" if masked else ""
    )


def _in_gradient(step: FailedStep) -> bool:
    if step.sink is not None and step.sink.kind in ("gradient", "parameter"):
        return True
    return any(birth.phase == "backward" for birth in step.births)


def _overflowing_mask(birth: TracedBirth) -> Operand | None:
    """The operand that was a mask at the limit of the dtype, if the birth is its overflow."""
    limit = LARGEST.get(birth.dtype, 3.4e38)
    if birth.transition != "finite->inf" or birth.output is None or birth.output.neginf == 0:
        return None
    if birth.output.posinf > birth.output.neginf:
        return None
    if birth.op in ("add", "sub", "mul"):
        near = [o for o in birth.operands if (o.summary.min or 0.0) < -0.3 * limit]
        return near[0] if near else None
    if birth.op in ("to_copy", "copy"):
        source = birth.operands[-1] if birth.operands else None
        low = source.summary.min if source is not None else None
        if source is not None and low is not None and low < -limit and source.summary.max is not None:
            return source if source.summary.max <= 0 and source.summary.zeros else None
    return None


def _mistake(birth: TracedBirth) -> str | None:
    infinite_scalar = any(isinstance(v, float) and math.isinf(v) for v in birth.scalars.values())
    if birth.op == "mul" and birth.birth.nan and (birth.fact("zero_times_bad") or infinite_scalar):
        mask_times_mask = len(birth.operands) == 2 and any(o.neginf for o in birth.operands) and any(
            looks_like_mask(o) for o in birth.operands
        )  # fmt: skip
        if infinite_scalar or (mask_times_mask and all(o.origin != "activation" for o in birth.operands)):
            return f"a mask was multiplied by infinity: {birth.birth.nan} zeros became NaN"
    if birth.op in ("softmax", "log_softmax") and birth.transition == "inf->nan":
        scores = birth.operands[0] if birth.operands else None
        if scores is not None and scores.posinf and not birth.fact("fully_masked_rows"):
            return f"{birth.op} of scores with {scores.posinf} entries of +inf: a mask with the wrong sign"
    if birth.op in ("add", "sub") and birth.fact("inf_minus_inf") and any(o.neginf for o in birth.operands):
        return f"masks of infinity were combined: {int(birth.fact('inf_minus_inf'))} times inf - inf"
    return None
