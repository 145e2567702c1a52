"""RUN010: a learning rate at which the run diverges."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.rules.evidence import at
from stayfinite.rules.run.growth import Growth, growth

# Ops that are wrong only where their input is: everything else is legal and merely got too large.
_DOMAINS = ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "acos", "asin", "atanh", "div", "reciprocal", "softmax",
            "xlogy", "log_softmax", "logsumexp", "std", "var", "mean", "ctc_loss", "pow")  # fmt: skip

_RUINED = 1e6

_LONG_ENOUGH = 3


class RateTooHigh(Rule[FailedStep]):
    """Every op is legal, and loss, gradients and updates grow from step to step: the learning rate is too high.

    ## What it finds
    An overflow in an op that is defined everywhere (a product, a sum, a squared loss) after a history in which
    the loss or the gradient norm grew by orders of magnitude over at least three steps.

    ## Why it is bad
    Each update overshoots more than the last. The NaN at the end is the smallest part of the damage: the weights
    were ruined steps before.

    ## Example
    SGD with rate 1.0 on inputs of variance 9: the loss multiplies by a constant each step

    ## The fix
    Lower the rate below the point where growth began, scale it with the batch size, warm up, and roll back to
    weights from before the growth.

    ## The popular fix that does not work
    eps, nan_to_num or skipping the NaN step: the weights are already wrong, the next step grows again.

    ## References
    facebookresearch/maskrcnn-benchmark#295, OpenNMT/OpenNMT-tf#744
    """

    code = "RUN010"
    name = "rate-too-high"
    cause = "LR_DIVERGENCE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        grown = growth(subject.history)
        if grown is None:
            return
        if subject.complete and not subject.births and (grown.quantity != "loss" or grown.factor < _RUINED):
            return  # a finished run that stayed finite must have gone very far up to be called diverged
        birth = subject.birth
        certain = _certainty(birth, grown)
        if certain is None:
            return
        if grown.steps < _LONG_ENOUGH:
            certain = min(certain, 0.6)  # raw inputs explode as quickly, and then they are the cause
        rate = subject.history[-1].lr if subject.history else None
        stepped = subject.optimizers[0].stepped if subject.optimizers else None
        place = at(birth) if birth is not None else None
        shown = f" at rate {rate:g}" if rate is not None else ""
        yield self.finding(
            f"the {grown.quantity} grew from {grown.lowest:.3g} to {grown.last:.3g} over {grown.steps} steps{shown}, "
            "and every op on the way is legal",
            fix="lower the learning rate (try a tenth), add warm-up, and restart from weights before the growth",
            evidence={
                "quantity": grown.quantity,
                "lowest": grown.lowest,
                "last": grown.last,
                "steps": grown.steps,
                "lr": rate,
            },
            confidence=certain,
            file=place["file"] if place else (stepped.file if stepped else None),
            line=place["line"] if place else (stepped.line if stepped else None),
        )


def _certainty(birth: TracedBirth | None, grown: Growth) -> float | None:
    if birth is None:
        return 0.85
    if birth.transition not in ("finite->inf", "inf->nan", "amplified", "finite->nan"):
        return None
    if birth.transition == "finite->inf" and birth.op not in _DOMAINS:
        return 0.92 if grown.factor > 1e3 else 0.75
    if birth.op == "pow" and birth.transition == "finite->inf":
        return 0.9
    return 0.6 if grown.factor > 1e3 else 0.4
