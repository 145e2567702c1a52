"""Values that were not computed in the step: data, literals, parameters, memory that nobody wrote to."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind, Mechanism
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth

_WRITTEN = (
    "lift_fresh", "full", "full_like", "new_full", "fill", "scalar_tensor", "constant", "outside",
    "masked_fill",
)  # fmt: skip


def uninitialised(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """Memory of torch.empty, read before anything was written."""
    if birth.transition == "uninitialised":
        return Mechanism(Kind.UNINITIALISED, birth.output, birth.birth.numel)
    bad, columns = birth.fact("bad_columns"), birth.fact("columns")
    if bad and birth.fact("rescaled_columns") == columns - bad:
        return Mechanism(Kind.CONSTANT_COLUMN, birth.output, int(bad))
    return None


def from_the_batch(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """The value was bad in the batch already."""
    found = came_in(step, birth)
    return found if found is not None and found.word == "batch" else None


def came_in(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """The value was bad before the step computed anything."""
    if birth.transition not in ("outside", "deliberate"):
        return None
    held = _bad_tensor(birth)
    origin = held.origin if held is not None else "outside"
    if birth.transition == "outside" and birth.phase == "optimizer" and origin == "outside":
        origin = "state"  # an optimizer reads gradients, weights and what it keeps itself: no batch
    if birth.transition == "outside" and origin in ("parameter", "buffer", "state", "gradient"):
        return Mechanism(Kind.CAME_IN, held, birth.birth.nan + birth.birth.inf, origin)
    if origin == "rank":
        return None  # what is wrong is on the rank that sent it, or in layers that are spread over the ranks
    in_batch = any(not tensor.finite for tensor in step.batch)
    data = birth.birth.nan or in_batch or birth is step.birth or birth.fact("into_data")
    if birth.transition == "deliberate" and (birth.op not in _WRITTEN or not data):
        # a mask of -inf is no data, unless nothing else explains the failure, or the batch has it
        return None
    return Mechanism(Kind.CAME_IN, held, birth.birth.nan + birth.birth.inf, "batch" if in_batch else origin)


def absurd_parameter(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A parameter or buffer of absurd size made a legal op overflow."""
    if birth.transition != "finite->inf":
        return None
    for held in birth.operands:
        if held.origin in ("parameter", "buffer") and 1e20 < (held.absmax or 0.0) < 3e38:
            return Mechanism(Kind.ABSURD_PARAMETER, held, held.numel)
    return None


def _bad_tensor(birth: TracedBirth) -> Operand | None:
    return next((o for o in (birth.output, *birth.operands) if o is not None and not o.finite), None)
