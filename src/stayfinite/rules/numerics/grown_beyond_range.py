"""NUM025: values that have grown until even float32 cannot square them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, Producer
from stayfinite.rules.evidence import judged, source_of, told

_LARGE = 1e6
_FACTOR = 1.5
_MAKES_LARGE_NUMBERS = ("div", "reciprocal", "rsqrt", "exp", "pow", "addcdiv")
_PASSES_ON = ("clone", "copy", "to_copy", "cat", "stack", "t", "view", "transpose")


class GrownBeyondRange(Rule[FailedStep]):
    """Values inside the model have grown until a legal op left the range of its dtype.

    ## What it finds
    A legal op that overflowed on values of the model itself (activations, weights), which no single division,
    exponential or power made large: they have grown on their way, through layers, or through a recurrence or an
    integration whose line computes its own result again and again.

    ## Why it is bad
    Nothing bounds them: a residual that every layer enlarges, mixing weights that may exceed 1. A normalisation
    before each branch hides the growth from the loss until its own square overflows, and then every batch fails
    although all weights are finite.

    ## Example
    `x = mixing @ x + branch(norm(x))` over 48 layers, with a learnt `mixing` of norm 2.5

    ## The fix
    Bound what grows: mixing weights that sum to 1 (`stayfinite.ops.sinkhorn`), a normalised or scaled residual, a
    lower learning rate; and go back to weights from before the growth.

    ## The popular fix that does not work
    float32 in the place of bfloat16: both end at 3.4e38. Skipping the batch: the next one fails as well.

    ## References
    lucidrains/hyper-connections#4
    """

    code = "NUM025"
    name = "grown-beyond-range"
    cause = "LR_DIVERGENCE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.GROWN):
            grown = born.how.operand
            if (
                grown is None
                or grown.provenance not in ("hidden", "parameter")
                or (grown.absmax or 0.0) < _LARGE
            ):
                continue
            again = _repeated(grown, subject)
            if again is None and grown.made_by(*_MAKES_LARGE_NUMBERS) is not None:
                continue  # one op made it large, and no growth did
            trained = any(record.applied for record in subject.run.history[:-1])
            where = f"; line {again.line} runs again and again, and each time it is larger" if again else ""
            yield self.finding(
                f"{born.birth.op} met values up to {grown.absmax:.3g} in {source_of(grown)} and left the range of "
                f"{born.birth.dtype}{where}",
                fix="bound what is repeated: a smaller step, a contraction (gates, tanh, a norm in between)"
                if again
                else "bound what grows (mixing weights that sum to 1, a scaled residual, a norm), lower the learning "
                "rate, and go back to weights from before the growth",
                cause="EXP_OVERFLOW" if again or not trained else "LR_DIVERGENCE",
                **told(born, absmax=grown.absmax),
            )
            return


def _repeated(operand: Operand, step: FailedStep) -> Producer | None:
    """The line that computed it from its own result, several times over, growing. The layers of a Sequential are one
    after the other at a line that runs once, and so are the sums that make one update."""
    updates = {(optimizer.stepped.file, optimizer.stepped.line) for optimizer in step.run.optimizers}
    made = [one for one in operand.producers if (one.file, one.line) not in updates]
    for producer in made:
        again = [one for one in _upstream(producer, made) if _place(one) == _place(producer)]
        if not again or producer.name in _PASSES_ON:
            continue
        sizes = [one.absmax or 0.0 for one in (producer, *again)]
        if sizes[0] > _FACTOR * sizes[-1] > 0 and all(a > b for a, b in pairwise(sizes)):
            return producer
    return None


def _upstream(producer: Producer, made: Sequence[Producer]) -> list[Producer]:
    """Those that it was made of, directly or not, nearest first: two products on one line are no repetition."""
    wanted, found = set(producer.made_of), list[Producer]()
    for one in sorted(made, key=lambda one: -one.number):
        if one.number in wanted:
            found.append(one)
            wanted.update(one.made_of)
    return found


def _place(producer: Producer) -> tuple[object, ...]:
    return producer.file, producer.line, producer.position, producer.module, producer.name
