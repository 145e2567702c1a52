"""LOG001: a loss that is not finite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role, Series
from stayfinite.rules.log.story import place, ramp, rate_text, when

_RARE = 0.01
_GO_BACK = (
    "go back to a checkpoint from before this step (stayfinite scan DIR --last-good) and run on with stayfinite run, "
    "which names the operation"
)
_REFUSED = "incidents/ beside this log name the operation and the samples"
_CAME_BACK = (
    "run it with stayfinite run, which names the operation and the samples; what was saved since is to be looked into "
    "(stayfinite scan DIR)"
)


class NonfiniteValue(Rule[Log]):
    """A loss in the log is NaN or infinite.

    ## What it finds
    The first value of a training loss or a loss component that is not finite, and the window from the first to the
    last of them; whether the run came back; what loss, gradient norm, learning rate and loss scale were at that
    moment. A validation loss that is not finite while the training loss is finite is reported as well.

    ## Why it is bad
    When the loss stays NaN to the end, every step after the first one was lost, and every checkpoint written in the
    window is suspect. When it came back, something refused those steps, or they did harm that shows later.

    ## Example
    `{"step": 1412, "loss": NaN, "grad_norm": NaN}`

    ## The fix
    Go back to the last checkpoint from before the window (`stayfinite scan DIR --last-good`), and run from there with
    `stayfinite run`, which stops at the step and names the operation. Where the loss came back, the weights held, or
    something refused those steps: find the samples, and look into what was saved since.

    ## The popular fix that does not work
    Dropping NaN values before plotting: the curve looks healthy, and the weights are gone.

    ## References
    huggingface/trl#6702 (honest logs); pytorch/pytorch#46849
    """

    code = "LOG001"
    name = "loss-not-finite"
    cause = "STATE_POISONED"
    severity = Severity.ERROR

    def check(self, subject: Log) -> Iterator[Finding]:
        bad = [
            series for series in subject.of_role(Role.LOSS, Role.COMPONENT) if series.first_bad is not None
        ]
        if bad:
            first = min(
                bad,
                key=lambda series: (
                    series.first_bad.order if series.first_bad else 0,
                    series.role is not Role.LOSS,
                ),
            )
            yield self._finding(subject, first, [series.name for series in bad if series is not first])
            return
        for series in subject.of_role(Role.EVALUATION):
            if series.first_bad is not None:
                yield self._finding(subject, series, [])

    def _finding(self, log: Log, series: Series, others: list[str]) -> Finding:
        first, last = series.first_bad, series.last_bad
        if first is None or last is None:
            raise ValueError(series.name)
        trouble = log.trouble
        around = series.around
        came_back = not series.ends_bad
        window = (
            f"from {when(log, first)} to {when(log, last)}"
            if last != first
            else f"at {when(log, first)} only"
        )
        refused = came_back and series.refused == series.bad
        to_the_end = ", up to the end of the log" if not came_back and series.bad > 1 else ""
        after = " and was finite again afterwards" if came_back else ""
        kept_out = "; none of these steps was applied" if refused else ""
        also = f"; also {', '.join(others[:4])}" if others else ""
        kind = "NaN" if first.value != first.value else f"{first.value:g}"
        rare = came_back and series.bad <= max(1, _RARE * series.count)
        harmless = rare or refused or (series.role is Role.EVALUATION and came_back)
        grew = ramp(trouble.before.get(series.name, []), 5.0) if trouble is not None else None
        cause = "LR_DIVERGENCE" if grew is not None else "BAD_BATCH_SPIKE" if rare or refused else self.cause
        return self.finding(
            f"{series.name} became {kind} at {when(log, first)}; {series.bad} of {series.count} values are not finite, "
            f"{window}{to_the_end}{after}{kept_out}{rate_text(log, around)}{also}",
            fix=_REFUSED if refused else _CAME_BACK if came_back else _GO_BACK,
            evidence={
                "series": series.name,
                "first_step": first.step,
                "last_step": last.step,
                "first_line": first.line,
                "last_line": last.line,
                "nan": series.nan,
                "inf": series.inf,
                "values": series.count,
                "recovered": came_back,
                "refused": series.refused,
                "around": around,
                "last_finite": series.last_finite.value if series.last_finite else None,
            },
            severity=Severity.WARNING if harmless else None,
            cause=cause,
            **place(log, first),
        )
