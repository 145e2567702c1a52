"""RUN023: an update that the script makes by hand, out of gradients, at a learning rate that is far too high."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import Place
from stayfinite.findings.subjects.traced_birth import Operand, Producer
from stayfinite.rules.evidence import judged

_STEPS = ("sub", "add", "rsub", "addcmul", "lerp")
_TIMES = ("mul", "neg")
_LARGE = 1e6
_MOST_OF_IT = 0.5  # of what came out is the update: the weights were smaller


class OwnUpdateTooLarge(Rule[FailedStep]):
    """A forward pass with weights that the script made by hand out of gradients, and that one step made enormous.

    ## What it finds
    A failure in a forward pass whose weights are `w - rate * gradient`, computed by the script itself and not by an
    optimizer: the inner loop of meta-learning (MAML), adversarial or unrolled updates, a hand-written descent. The
    update is nearly all of what came out, and that is beyond 1e6.

    ## Why it is bad
    No optimizer knows of this rate: schedules, clipping and skipped steps do not touch it. Each inner step begins
    with what the last one ruined, so that a few of them leave the range of float32 within one batch.

    ## Example
    `fast = [w - 1000.0 * g for g, w in zip(grads, fast)]`, five times over

    ## The fix
    Lower that rate (MAML uses 0.01 to 0.4), or clip the gradients of the inner steps; the outer learning rate is not
    the one.

    ## The popular fix that does not work
    Lowering the rate of the optimizer, or clipping what it is given: the inner steps fail before it is asked.

    ## References
    Antoniou et al., How to train your MAML (2019)
    """

    code = "RUN023"
    name = "own-update-too-large"
    cause = "LR_DIVERGENCE"
    severity = Severity.ERROR
    more_specific_than = ("NUM025", "NUM021", "RUN001", "RUN010")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        optimizers = {(one.stepped.file, one.stepped.line) for one in subject.run.optimizers}
        for born in judged(subject, *DEPENDS_ON_SIZE):
            updates = [found for o in born.birth.operands if (found := _update_in(o, optimizers)) is not None]
            if not updates:
                continue
            update = max(updates, key=lambda one: one.moved)
            rate = f"learning rate {update.rate:g}" if update.rate is not None else "the learning rate"
            yield self.finding(
                f"{rate} of the script's own update (line {update.step.line}): a gradient times it made weights of "
                f"up to {update.step.absmax:.3g}, with which {born.birth.op} left the range of {born.birth.dtype}",
                fix="lower the learning rate of this update, or clip its gradients; the optimizer's is another one",
                evidence={"lr": update.rate, "weights": update.step.absmax, "update": update.moved},
                depth=Depth.UPSTREAM,
                place=Place(update.step.file, update.step.line),
            )
            return


@dataclass(frozen=True, slots=True)
class _Update:
    step: Producer
    rate: float | None
    moved: float


def _update_in(operand: Operand, optimizers: Collection[tuple[str | None, int | None]]) -> _Update | None:
    """The nearest step upstream that is mostly made of a gradient, and that no optimizer made."""
    if operand.in_backward:
        return None
    for step in operand.producers:
        made = step.absmax or 0.0
        if (
            step.name not in _STEPS
            or step.in_backward
            or made < _LARGE
            or (step.file, step.line) in optimizers
        ):
            continue
        for source in _made(step, operand):
            of, factors = source, [source]
            while of.name in _TIMES and not of.in_backward and (further := _made(of, operand)):
                of = further[0]
                factors.append(of)
            alpha = _number(step, "alpha")
            moved = (source.absmax or 0.0) * abs(alpha or 1.0)
            if of.in_backward and moved > _MOST_OF_IT * made:
                scalars = (_number(one, "other", "self") for one in factors)
                rate = alpha or next((value for value in scalars if value is not None), None)
                return _Update(step, abs(rate) if rate is not None else None, moved)
    return None


def _made(product: Producer, operand: Operand) -> list[Producer]:
    """What it was made of, gradients first."""
    found = [one for one in operand.producers if one.number in product.made_of]
    return sorted(found, key=lambda one: not one.in_backward)


def _number(producer: Producer, *names: str) -> float | None:
    """A plain number among its arguments."""
    found = (producer.scalars.get(name) for name in names)
    return next((float(v) for v in found if isinstance(v, (int, float)) and not isinstance(v, bool)), None)
