"""RUN010: a learning rate at which the run diverges."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE
from stayfinite.findings.outlier_batch import outlier_batch
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import OptimizerFacts
from stayfinite.findings.update_size import (
    MANY_TIMES,
    Ruin,
    absurd_rate,
    first_absurd_update,
    how_far,
    is_measure,
    largest_update,
    learning_rate,
    rounded,
    ruin,
    sets_itself_growing,
    usual_rate,
)
from stayfinite.rules.evidence import (
    depth_of_run_cause,
    first_line,
    only_an_error,
    place_of_failure,
    raised_by_the_optimizer,
    told_by_error,
)
from stayfinite.rules.run.growth import growth, of_the_last

_COMPUTED = ("finite->inf", "inf->nan", "amplified", "finite->nan")
_RUINED = 1e6
_LARGE = 1e6


class RateTooHigh(Rule[FailedStep]):
    """One update moved the weights by many times their own size, or loss and gradients grow from step to step.

    ## What it finds
    A failure shortly after an update that was more than 20 times as large as the weights, whatever op it showed in:
    a softmax, an exponential, a norm. Or, in a run that ended without a bad value, a loss that is at least ten times as
    high ever since such an update, or a thousand times ever since one of more than twice the size of the weights. Or
    an overflow in an op that is defined everywhere (a product, a sum, a
    squared loss) after a history in which the loss or the gradient norm grew by orders of magnitude over at least
    three steps. Large updates of a run that goes on well are no finding.

    ## Why it is bad
    Each update overshoots more than the last. The NaN at the end is the smallest part of the damage: the weights
    were ruined steps before.

    ## Example
    SGD with learning rate 1.0 on inputs of variance 9: the loss multiplies by a constant each step

    ## The fix
    Lower the learning rate below the point where growth began, scale it with the batch size, warm up, and roll back
    to weights from before the growth.

    ## The popular fix that does not work
    eps, nan_to_num, or skipping what fails: the weights are already wrong, and the next step begins with them.

    ## References
    facebookresearch/maskrcnn-benchmark#295, OpenNMT/OpenNMT-tf#744
    """

    code = "RUN010"
    name = "learning-rate-too-high"
    cause = "LR_DIVERGENCE"
    severity = Severity.ERROR
    more_specific_than = ("NUM025", "NUM021", "RUN001")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if any(map(sets_itself_growing, subject.run.optimizers)) and not absurd_rate(subject):
            return  # whatever the rate
        rate, moved = learning_rate(subject), largest_update(subject)
        birth = subject.birth
        first = subject.judged[0].how if subject.judged else None
        place = place_of_failure(subject)
        failed = bool(birth or subject.state) or (not subject.run.complete and subject.trigger != "exception")
        before = first is not None and first.word in ("parameter", "state")  # weights that were bad already
        if failed and moved is not None and (first is None or first.kind in DEPENDS_ON_SIZE or before):
            yield self.finding(
                f"at learning rate {_shown(rate)} one update moved the weights {how_far(moved)}",
                fix=f"lower the learning rate {_to(subject, rate, moved)}, then restart from weights before the update",
                evidence={"update_ratio": moved, "lr": rate},
                depth=self._depth(subject),
                place=place,
            )
            return
        failure = only_an_error(subject)
        if (
            failure is not None
            and "without overflow" in failure.text
            and raised_by_the_optimizer(subject, failure)
        ):
            yield self.finding(
                f"the learning rate {_shown(rate)} does not fit into the dtype of the weights: {first_line(failure)}",
                fix="lower the learning rate; a usual one is between 1e-5 and 1",
                **told_by_error(failure),
            )
            return
        ruined = ruin(subject.run.history) if subject.run.complete and not subject.births else None
        outlier = outlier_batch(subject.run.history) if ruined is not None else None
        if ruined is not None and outlier is not None and outlier.record.step == ruined.step:
            return  # its batch made the update so large
        if ruined is not None:
            yield self.finding(
                f"at learning rate {_shown(ruined.lr)}{_raised(ruined)} the update of step {ruined.step} moved the "
                f"weights {how_far(ruined.moved)}: {_what_became(ruined)}",
                fix=f"{_lowered(ruined)}, then start again",
                evidence={"update_ratio": ruined.moved, "lr": ruined.lr},
                depth=Depth.FIRST,
                place=ruined.stepped if ruined.stepped.line else place,
            )
            return
        inner = _inner_updates(subject)
        if inner is not None:
            yield self.finding(
                f"at learning rate {inner.lr:g} {inner.kind} moved the weights between two evaluations of the same "
                f"step so far that they made values up to {_largest(subject):.3g}",
                fix="lower the learning rate: with L-BFGS it is 1, or a line search finds it "
                '(line_search_fn="strong_wolfe")',
                evidence={"lr": inner.lr},
                depth=Depth.FIRST,
                place=place,
            )
            return
        grown = growth(of_the_last(subject.run.history))
        if grown is None or (birth is not None and birth.transition not in _COMPUTED):
            return
        if (
            subject.run.complete
            and not subject.births
            and (grown.quantity != "loss" or grown.factor < _RUINED)
        ):
            return  # a finished run that stayed finite must have gone very far up to be called diverged
        yield self.finding(
            f"the {grown.quantity} grew from {grown.lowest:.3g} to {grown.last:.3g} over {grown.steps} steps at "
            f"learning rate {_shown(rate)}, and every op on the way is legal"
            if depth_of_run_cause(subject) == Depth.UPSTREAM
            else f"the {grown.quantity} grew from {grown.lowest:.3g} to {grown.last:.3g} over {grown.steps} "
            f"steps before, at learning rate {_shown(rate)}",
            fix="lower the learning rate (try a tenth), add warm-up, and restart from weights before the growth",
            evidence={
                "quantity": grown.quantity,
                "lowest": grown.lowest,
                "last": grown.last,
                "steps": grown.steps,
                "lr": rate,
            },
            depth=max(depth_of_run_cause(subject), self._depth(subject)),
            place=place,
        )

    def _depth(self, step: FailedStep) -> int:
        """What went too far began with a batch that stood out: then the rate was good enough until it came."""
        if absurd_rate(step):
            return Depth.FIRST
        return Depth.RUN if outlier_batch(step.run.history) is not None else Depth.UPSTREAM


def _raised(ruined: Ruin) -> str:
    if ruined.lower_until is None:
        return ""
    rate, step = ruined.lower_until
    return f" (it was {rate:g} until step {step})"


def _lowered(ruined: Ruin) -> str:
    if ruined.lower_until is not None:
        return "look at what raises the learning rate (a schedule with a factor above 1), and keep it where it was"
    if ruined.by_growth:
        return "lower the learning rate (try a tenth)"
    return f"lower the learning rate {_at(ruined.lr, ruined.moved)}"


def _what_became(ruined: Ruin) -> str:
    losses = f"{ruined.before:.3g} before and {ruined.after:.3g} at the end"
    if ruined.dead:
        return f"every gradient after it was exactly 0, and nothing was learnt any more (loss {losses})"
    if abs(ruined.after) > abs(ruined.before):
        return f"the loss was {losses}, and never nearer to 0 than {ruined.lowest:.3g} after it"
    return f"nothing is left of what they were, whatever the loss says ({losses})"


def _inner_updates(step: FailedStep) -> OptimizerFacts | None:
    """L-BFGS makes many updates within one step, and evaluates the loss after each: its rate is a factor of a whole
    Newton step."""
    first = step.judged[0].how if step.judged else None
    if first is None or first.kind not in DEPENDS_ON_SIZE or _largest(step) < _LARGE:
        return None
    return next((o for o in step.run.optimizers if o.kind == "LBFGS" and o.lr >= MANY_TIMES), None)


def _largest(step: FailedStep) -> float:
    return max((o.absmax or 0.0 for o in step.judged[0].birth.operands), default=0.0)


def _to(step: FailedStep, rate: float | None, moved: float) -> str:
    """Measured by the first update that went too far: later ones are larger because the weights are."""
    first = first_absurd_update(step)
    if first is not None and first.by_growth:
        return "(try a tenth)"
    if first is None or first.moved == moved:
        return _at(rate, moved)
    return _at(first.lr, first.moved, f"the first such update (about {rounded(first.moved)} times)")


def _at(rate: float | None, moved: float, which: str = "that update") -> str:
    if not rate or not is_measure(rate, moved):
        return "to a usual one, between 1e-5 and 1"
    return f"to about {usual_rate(rate, moved):g}, at which {which} is a thousandth of the weights' size"


def _shown(rate: float | None) -> str:
    return f"{rate:g}" if rate is not None else "unknown"
