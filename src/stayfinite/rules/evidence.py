"""How rules put a judged birth into words and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

from stayfinite.findings.finding import Depth
from stayfinite.findings.mechanism.kind import Judged, Kind
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.run_record import Place
from stayfinite.findings.subjects.setup import HeldTensor
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth

_RANDOM = (
    "rand",
    "randn",
    "randint",
    "uniform",
    "normal",
    "bernoulli",
    "exponential",
    "rand_like",
    "randn_like",
)


class Told(TypedDict):
    """Evidence and place of a finding, as keyword arguments."""

    evidence: dict[str, Any]
    file: str | None
    line: int | None
    depth: int


def judged(step: FailedStep, *kinds: Kind) -> Iterator[Judged]:
    """The births that came about in one of these ways."""
    return (born for born in step.judged if born.how.kind in kinds)


def told(born: Judged, *facts: str, **more: Any) -> Told:
    """What a finding about a birth shows: its operands, the named facts, and where it was."""
    birth, how = born.birth, born.how
    shown = (how.operand,) if how.operand is not None else birth.operands
    measured = {name: birth.facts[name] for name in facts if name in birth.facts}
    evidence = {"inputs": tensors(*shown), **measured, **how.more, **more}
    return {"evidence": evidence, "file": birth.birth.file, "line": birth.birth.line, "depth": born.depth}


def place_of_failure(step: FailedStep) -> Place:
    """The line of the birth, or else of the clipping that met it, or else of the update."""
    if step.birth is not None:
        return Place(step.birth.birth.file, step.birth.birth.line)
    clip = next((c for c in step.run.clips if c.nonfinite_norms), None) if step.norm_overflowed else None
    if clip is not None:
        return clip.place
    if step.asked.line:
        return step.asked
    return step.run.optimizers[0].stepped if step.run.optimizers else Place()


def told_by_error(failure: Failure) -> Told:
    """The same for an exception that is the only witness."""
    place = failure.place
    return {"evidence": {"error": failure.text}, "file": place.file, "line": place.line, "depth": Depth.BIRTH}


def written_into_weights(step: FailedStep, born: Judged) -> HeldTensor | None:
    """Of a bad value that came in from outside: the weights that held it before the first step."""
    if born.how.kind is not Kind.CAME_IN or born.how.word in (
        "batch",
        "parameter",
        "buffer",
        "state",
        "gradient",
    ):
        return None
    shown = born.birth.birth
    return next(
        (
            held
            for held in step.run.began
            if (held.summary.nan, held.summary.inf) == (shown.nan, shown.inf) and shown.nan + shown.inf
        ),
        None,
    )


def only_an_error(step: FailedStep) -> Failure | None:
    """The exception of a step in which no bad value was born before it: then its text is what there is."""
    birth = step.birth
    return step.failure if birth is None or birth.transition == "raised" else None


def raised_by_the_optimizer(step: FailedStep, failure: Failure) -> bool:
    """The error came out of the line of optimizer.step()."""
    return any(
        (o.stepped.file, o.stepped.line) == (failure.place.file, failure.place.line) and o.stepped.line
        for o in step.run.optimizers
    )


def first_line(failure: Failure) -> str:
    text = failure.text.strip()
    return text.splitlines()[0] if text else failure.kind


def depth_of_run_cause(step: FailedStep) -> int:
    """A mistake of the run led to the birth if that is mere growth; beside any other birth it stands by itself."""
    grown = (Kind.GROWN, Kind.HALF_OVERFLOW, Kind.UNKNOWN)
    return Depth.UPSTREAM if not step.judged or step.judged[0].how.kind in grown else Depth.RUN


def counted(number: float, what: str) -> str:
    """ "1 zero", "3 zeros"."""
    whole = int(number)
    return f"{whole} {what}" if whole == 1 else f"{whole} {what}s"


def is_given(operand: Operand | None) -> bool:
    """Nothing that is trained went into it: labels, targets, tables, what the script itself wrote."""
    return (
        operand is not None
        and operand.provenance == "data"
        and operand.origin != "random"
        and operand.made_by(*_RANDOM, within=8) is None
    )


def span(operand: Operand | None) -> str:
    """The finite range and dtype of a tensor: "0 to 0.91, float32"."""
    if operand is None or operand.summary.min is None or operand.summary.max is None:
        return "no finite value" if operand is not None else "range unknown"
    return f"{operand.summary.min:.4g} to {operand.summary.max:.4g}, {operand.dtype}"


def source_of(operand: Operand | None) -> str:
    """Where a tensor came from, as a phrase: "parameter head.weight", "the output of sigmoid (line 9)"."""
    if operand is None:
        return "its input"
    if operand.name:
        return f"{operand.origin} {operand.name}"
    if operand.producers:
        first = operand.producers[0]
        made = "what came in from outside" if first.name == "lift_fresh" else f"the output of {first.name}"
        return made + (f" (line {first.line})" if first.line else "")
    return {"batch": "the batch", "constant": "a constant", "random": "random numbers"}.get(
        operand.origin, "its input"
    )


def tensors(*operands: Operand | None) -> list[dict[str, Any]]:
    """Operands for the evidence of a finding."""
    return [
        {**operand.summary.to_json(), "origin": operand.origin, "negatives": operand.negatives}
        for operand in operands
        if operand is not None
    ]


def bad_values(birth: TracedBirth) -> int:
    return birth.birth.nan + birth.birth.inf
