"""DAT011: inputs that are orders of magnitude too large."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import LARGEST
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.findings.update_size import absurd_rate
from stayfinite.rules.evidence import judged, tensors

# Above this a zero-mean, unit-variance input is out of the question; 255 is the common case of raw pixels.
_LARGE, _JUMP = 200.0, 100.0
_NEAR = 100.0
_STATISTICS = ("running_mean", "running_var")  # of earlier batches: no input
_AS_LARGE = 1e3
_NORMALISE = (
    "normalise the inputs (x.float() / 255, or by training statistics) and reject records out of range"
)
_AT_ITS_SOURCE = (
    "look at where this value is made (a reward, a target, a placeholder for what is missing): clip or reject it "
    "there, or scale what is given to the size of 1"
)
_MASKS = ("masked_fill", "where", "triu", "tril")
_FILL_VALUE, _ABOVE_FILL = 3.4028e38, 3.4029e38
_FILL = ": the largest number of float32, which many files hold where a value is missing"


class InputOutOfScale(Rule[FailedStep]):
    """The inputs are orders of magnitude larger than a network expects, and the step overflowed or diverged.

    ## What it finds
    A legal op that overflowed in a step whose inputs hold magnitudes above 200 (raw pixels, raw prices, byte
    counts), or a hundred times those of the steps before. Inputs are what nothing trained went into: a hidden
    activation or a weight is none.

    ## Why it is bad
    Activations, and with them gradients, scale with the input; a squared loss scales with its square. The learning
    rate that is right for normalised inputs diverges for raw ones, and one corrupt record overflows float32.

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
    more_specific_than = ("RUN001", "RUN010", "NUM025", "NUM021", "STA011")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        largest, held = _largest_input(subject)
        before = [r.input_absmax for r in subject.run.history[:-1] if r.input_absmax]
        typical = median(before) if before else None
        for born in judged(subject, Kind.GROWN, Kind.HALF_OVERFLOW):
            local, value = _data_operand(born.birth), largest
            if local is not None and (local.absmax or 0.0) > value:
                held, value = local, local.absmax or 0.0
            absurd = _weights_are_absurd(subject)  # then they are what came in, and nothing trained went into
            upstream = 0.0 if absurd else _raw_upstream(born.birth)
            if upstream > _NEAR * value:  # else it is the batch, rescaled on its way
                value = upstream
            jumped = typical is not None and value > _JUMP * typical
            given = 0.0 if absurd else _given(born.birth, value)
            value = max(value, given)
            if not jumped and (value < _LARGE or (born.birth.phase == "optimizer")):
                continue
            if born.how.kind is Kind.HALF_OVERFLOW:
                depth = Depth.UPSTREAM if jumped else Depth.RUN  # else the format is the nearer explanation
            else:
                depth = Depth.RUN if absurd_rate(subject) else Depth.UPSTREAM
            yield self.finding(
                f"{born.birth.op} overflowed on inputs up to {value:.3g}{_which(subject, held, local, value)}"
                + (f" (given at {born.birth.facts.get('given_at')})" if given else "")
                + (
                    f", {value / typical:.1g} times those of the steps before"
                    if jumped and typical and not given
                    else ""
                )
                + (_FILL if _FILL_VALUE <= value < _ABOVE_FILL else ""),
                fix=_AT_ITS_SOURCE if given else _NORMALISE,
                evidence={"inputs": tensors(held), "input_absmax": value, "typical": typical},
                depth=depth,
                file=born.birth.birth.file,
                line=born.birth.birth.line,
            )
            return


def _which(step: FailedStep, held: Operand | None, local: Operand | None, value: float) -> str:
    """Labels are no inputs of the model, and a loss overflows on them as well."""
    if local is not None and local.absmax == value and local.summary.name == "target":
        return " (the target)"
    several = len({one.summary.name for one in step.batch}) > 1
    of_batch = held is not None and held in step.batch and held.absmax == value
    return f" ({held.summary.name})" if several and of_batch and held is not None else ""


def _largest_input(step: FailedStep) -> tuple[float, Operand | None]:
    """The largest magnitude among the inputs of the step: of its batch, or as the history recorded it."""
    floats = [o for o in step.batch if o.provenance == "data" and not (o.is_integer and o.dtype != "uint8")]
    held = max(floats, key=lambda o: o.absmax or 0.0, default=None)
    recorded = step.run.history[-1].input_absmax if step.run.history else None
    return max(held.absmax or 0.0 if held is not None else 0.0, recorded or 0.0), held


def _data_operand(birth: TracedBirth) -> Operand | None:
    """An operand (or saved input) that is data: nothing that is trained went into it."""
    seen = birth.saved if birth.phase == "backward" else birth.operands
    found = [
        o
        for o in seen
        if o.provenance == "data"
        and not o.in_backward
        and not _is_mask(o)
        and o.summary.name not in _STATISTICS
    ]
    return max(found, key=lambda o: o.absmax or 0.0, default=None)


def _weights_are_absurd(step: FailedStep) -> bool:
    """They were so before the first step: read from a file, or never written."""
    return any(held.absurd for held in step.run.began) or any(load.enormous for load in step.run.loads)


def _raw_upstream(birth: TracedBirth) -> float:
    """The largest magnitude upstream that nothing trained went into."""
    seen = (o for o in birth.operands if o.summary.name not in _STATISTICS)
    upstream = (p for o in seen if not _is_mask(o) and not o.in_backward for p in o.producers)
    return max((p.absmax or 0.0 for p in upstream if not p.learnt and p.name not in _MASKS), default=0.0)


def _given(birth: TracedBirth, known: float) -> float:
    """The largest number that came in and went into it, where it is about as large as what overflowed: then it is that
    number, and no growth; 0 where what is known already says as much."""
    given = birth.fact("given_absmax")
    largest = max((o.absmax or 0.0 for o in birth.operands), default=0.0)
    return given if given > known and largest / _AS_LARGE <= given <= largest * _AS_LARGE else 0.0


def _is_mask(operand: Operand) -> bool:
    """Additive masks are meant to be enormous, and negative."""
    limit, numbers = LARGEST.get(operand.dtype, 3.4e38), operand.summary
    return operand.absmax is None or (numbers.max or 0.0) <= 0 or -(numbers.min or 0.0) > 0.3 * limit
