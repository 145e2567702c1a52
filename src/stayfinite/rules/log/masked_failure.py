"""LOG009: a run that is dead while its log looks alive."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role, Series
from stayfinite.rules.log.story import main_loss, place, when

_FEWEST = 3
_FROZEN = 20
_DIGITS = 5


class MaskedFailure(Rule[Log]):
    """The loss is exactly 0.0, or does not change at all, because something hides that the run has failed.

    ## What it finds
    A loss that falls from an ordinary value to exactly 0.0 and stays there; a loss that is repeated digit by digit
    while the gradient norm is NaN; a gradient norm of exactly 0 to the end of the log while the learning rate is not 0.

    ## Why it is bad
    Filters make failures invisible: `logging_nan_inf_filter` of the Hugging Face Trainer (on by default) leaves NaN out
    of the average it prints, so a dead run shows `loss: 0.0`; `nan_to_num` and clamps on predictions give a finite loss
    and gradients of zero. The run costs money until somebody looks at samples.

    ## Example
    `{"loss": 0.0, "grad_norm": NaN, "learning_rate": 9.2e-06, "step": 1500}`

    ## The fix
    Turn the filter off (`logging_nan_inf_filter=False`), go back to the last good checkpoint, and find the step with
    `stayfinite run`.

    ## The popular fix that does not work
    Believing it: a loss of exactly 0.0 is no convergence.

    ## References
    transformers TrainingArguments.logging_nan_inf_filter; huggingface/trl#6702
    """

    code = "LOG009"
    name = "failure-hidden-by-log"
    cause = "BLIND_GUARD"
    severity = Severity.ERROR

    def check(self, subject: Log) -> Iterator[Finding]:
        loss = main_loss(subject)
        norm = subject.main(Role.NORM)
        if loss is None or loss.last is None or loss.ends_bad:
            return
        since = loss.repeated_since
        norm_bad = norm is not None and norm.ends_bad
        fewest = _FEWEST if norm_bad else _FEWEST + 2
        if since is not None and loss.repeated >= fewest and since.order > 0:
            if loss.last.value == 0.0 and _fell_at_once(loss, since.order):
                yield self._finding(subject, loss, norm, "is exactly 0.0", certain=norm_bad)
                return
            if norm_bad and loss.last.value != 0.0:
                yield self._finding(subject, loss, norm, f"stands still at {loss.last.value:g}", certain=True)
                return
            if loss.repeated >= _FROZEN and _exact(loss.last.value) and _moved_before(loss):
                yield self._finding(
                    subject, loss, norm, f"stands still at {loss.last.value!r}", certain=False
                )
                return
        if (
            norm is not None
            and norm.repeated >= _FROZEN // 2
            and norm.last is not None
            and norm.last.value == 0.0
        ):
            rate = subject.main(Role.RATE)
            if norm.maximum > 0 and (rate is None or rate.last is None or rate.last.value > 0):
                yield self._zero_norm(subject, norm)

    def _finding(self, log: Log, loss: Series, norm: Series | None, what: str, certain: bool) -> Finding:
        since = loss.repeated_since
        if since is None:
            raise ValueError(loss.name)
        seen = (
            f", and {norm.name} is {norm.last.value:g}" if certain and norm is not None and norm.last else ""
        )
        before = _level_before(loss, since.order)
        from_level = f" (before: {before:.3g})" if before is not None else ""
        return self.finding(
            f"{loss.name} {what} from {when(log, since)} to the end, {loss.repeated} values{from_level}{seen}: the log "
            "hides that the run has failed",
            fix="turn the logger's filter off (logging_nan_inf_filter=False) and go back to the last good checkpoint",
            evidence={
                "series": loss.name,
                "value": loss.last.value if loss.last else None,
                "since_step": since.step,
                "values": loss.repeated,
                "before": before,
                "norm": norm.last.value if norm is not None and norm.last else None,
            },
            severity=None if certain else Severity.WARNING,
            **place(log, since),
        )

    def _zero_norm(self, log: Log, norm: Series) -> Finding:
        since = norm.repeated_since
        if since is None:
            raise ValueError(norm.name)
        return self.finding(
            f"{norm.name} is exactly 0 from {when(log, since)} to the end, {norm.repeated} values: nothing is learnt",
            fix="look for nan_to_num, clamps or detached tensors between the model and the loss",
            evidence={"series": norm.name, "since_step": since.step, "values": norm.repeated},
            severity=Severity.WARNING,
            **place(log, since),
        )


def _level_before(loss: Series, order: int) -> float | None:
    known = [bucket.mean for bucket in loss.buckets if bucket.order < order and bucket.finite][-8:]
    return median(known) if known else None


def _fell_at_once(loss: Series, order: int) -> bool:
    """From an ordinary loss to zero; a loss that had become tiny before may well be zero."""
    before = _level_before(loss, order)
    if before is None or not loss.head:
        return False
    start = median([abs(point.value) for point in loss.head[:8] if math.isfinite(point.value)] or [0.0])
    return abs(before) > max(0.01, 0.02 * start)


def _exact(value: float) -> bool:
    """Written with so many digits that rounding does not explain a repeat."""
    return len(repr(abs(value)).replace(".", "").strip("0").partition("e")[0]) >= _DIGITS


def _moved_before(loss: Series) -> bool:
    return loss.minimum < loss.maximum and loss.count > 2 * loss.repeated // 3 and loss.repeated < loss.count
