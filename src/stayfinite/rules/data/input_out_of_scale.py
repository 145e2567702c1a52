"""DAT011: inputs that are orders of magnitude too large."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, Producer, TracedBirth
from stayfinite.rules.evidence import LARGEST, at, births_by_weight, tensors

# Above this a zero-mean, unit-variance input is out of the question; 255 is the common case of raw pixels.
_LARGE = 100.0
_RAW = ("lift_fresh", "full", "randn", "rand", "randint", "copy", "stack", "cat", "from_numpy")
_GROWING = ("pow", "mul", "mm", "addmm", "bmm", "matmul", "convolution", "mse_loss", "linear", "add", "sum", "mean",
            "square", "linalg_vector_norm", "norm", "smooth_l1_loss", "var", "sub", "baddbmm", "dot", "mv",
            "huber_loss", "l1_loss", "cumsum")  # fmt: skip


class InputOutOfScale(Rule[FailedStep]):
    """The inputs are orders of magnitude larger than a network expects, and the step overflowed or diverged.

    ## What it finds
    A legal op that overflowed, or a loss that grows from the first steps on, in a step whose input tensors hold
    magnitudes above 100 (raw pixels, raw prices, byte counts), or a hundred times those of the steps before.

    ## Why it is bad
    Activations, and with them gradients, scale with the input; a squared loss scales with its square. The rate
    that is right for normalised inputs diverges for raw ones, and one corrupt record overflows float32.

    ## Example
    `model(images.float())` with pixels from 0 to 255; one record of 1e25 in a squared loss

    ## The fix
    Normalise by the dtype (`x.float() / 255`) or by statistics of the training set; reject records outside of
    the expected range where they are read.

    ## The popular fix that does not work
    A tiny learning rate: it suits the large features only, the others are not learnt at all.

    ## References
    ultralytics/ultralytics#24986
    """

    code = "DAT011"
    name = "input-out-of-scale"
    cause = "DATA_SCALE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if subject.complete and not subject.births:
            return
        largest, held = _largest_input(subject)
        before = [r.input_absmax for r in subject.history[:-1] if r.input_absmax]
        typical = median(before) if before else None
        for birth, weight in births_by_weight(subject):
            local = _data_operand(birth)
            here = local.absmax or 0.0 if local is not None else 0.0
            value = max(largest or 0.0, here, _raw_upstream(birth))
            if not _legal_overflow(birth) or value < _LARGE:
                continue
            jumped = typical is not None and value > 100 * typical
            # In float16 the format is the nearer explanation, unless the input itself is absurd.
            certain = 0.93 if jumped or value >= 200 else 0.8
            yield self.finding(
                f"{birth.op} overflowed on inputs up to {value:.3g}"
                + (f", {value / typical:.1g} times those of the steps before" if jumped and typical else ""),
                fix="normalise the inputs (x.float() / 255, or by training statistics) and reject records out of range",
                evidence={"inputs": tensors(held or local), "input_absmax": value, "typical": typical},
                confidence=(certain * 0.9 if birth.is_half and not jumped else certain) * weight,
                **at(birth),
            )
            return
        if (
            not subject.births
            and subject.trigger in ("loss", "gradient", "spike")
            and (largest or 0.0) >= _LARGE
        ):
            yield self.finding(
                f"the loss left its range on inputs up to {largest:.3g}",
                fix="normalise the inputs (x.float() / 255, or by training statistics)",
                evidence={"inputs": tensors(held), "input_absmax": largest, "typical": typical},
                confidence=0.6,
            )


def _largest_input(step: FailedStep) -> tuple[float | None, Operand | None]:
    """The largest magnitude among the inputs of the step: of its batch, or as the history recorded it."""
    floats = [o for o in step.batch if o.absmax is not None and not (o.is_integer and o.dtype != "uint8")]
    held = max(floats, key=lambda o: o.absmax or 0.0, default=None)
    recorded = step.history[-1].input_absmax if step.history else None
    if held is None:
        return recorded, None
    return max(held.absmax or 0.0, recorded or 0.0), held


def _data_operand(birth: TracedBirth) -> Operand | None:
    """An operand (or saved input) that is data: nothing is learnt through it, and it is no part of the model."""
    seen = birth.saved if birth.phase == "backward" else birth.operands
    model = ("parameter", "buffer", "state", "gradient")
    found = [o for o in seen if o.origin not in model and not o.requires_grad and not _is_mask(o)]
    return max(found, key=lambda o: o.absmax or 0.0, default=None)


def _raw_upstream(birth: TracedBirth) -> float:
    """The largest magnitude that went in upstream as it was written or read, before anything was computed of it."""
    return max(
        (
            p.absmax or 0.0
            for o in birth.operands
            for p in o.producers
            if _is_raw(p) and not _is_mask(o) and not _was_computed(p, o)
        ),
        default=0.0,
    )


def _was_computed(producer: Producer, operand: Operand) -> bool:
    """A `cat` of activations is no data: the value was there before it, made by an op that computes."""
    return any(
        p.distance > producer.distance and not _is_raw(p) and (p.absmax or 0.0) >= (producer.absmax or 0.0)
        for p in operand.producers
    )


def _is_raw(producer: Producer) -> bool:
    whole = (
        producer.name == "to_copy" and producer.inputs[:1] and producer.inputs[0].startswith(("int", "uint"))
    )
    return producer.name in _RAW or bool(whole)


def _is_mask(operand: Operand) -> bool:
    """Additive masks are meant to be enormous."""
    limit = LARGEST.get(operand.dtype, 3.4e38)
    return operand.absmax is None or (operand.summary.max or 0.0) <= 0 or operand.absmax > 0.3 * limit


def _legal_overflow(birth: TracedBirth) -> bool:
    exponent = birth.facts.get("exponent", birth.scalars.get("exponent"))
    if birth.op == "pow" and not (isinstance(exponent, (int, float)) and 0 < exponent <= 4):
        return False  # an exponential in disguise
    if birth.phase == "backward":
        # Inf and -Inf in one sum of products are NaN: still a mere overflow.
        return birth.op in _GROWING and birth.transition in ("finite->inf", "finite->nan")
    return birth.op in _GROWING and birth.transition == "finite->inf" and birth.phase == "forward"
