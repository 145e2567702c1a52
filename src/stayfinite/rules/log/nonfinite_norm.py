"""LOG002: a gradient norm that is not finite while the loss is."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role, Series
from stayfinite.rules.log.story import place, rate_text, when

_MANY = 0.2
_IN_A_ROW = 3


class NonfiniteNorm(Rule[Log]):
    """The gradient norm is NaN or infinite while the loss stays finite.

    ## What it finds
    Gradient norms that are not finite before the loss is, or without it ever being so. Falls of a logged loss scale
    explain them: a GradScaler tries a scale, sees the overflow and skips the step; such steps are not reported, unless
    they do not end.

    ## Why it is bad
    The backward pass fails first: the loss looks healthy, and clipping by a NaN norm makes every gradient NaN. Without
    a scaler, one such update poisons the weights.

    ## Example
    `{"step": 90, "loss": 1.93, "grad_norm": NaN}`

    ## The fix
    Find the operation whose gradient is not finite (`stayfinite run`); it is often a root, a power below one or a
    division at zero. Refuse the step before clipping.

    ## The popular fix that does not work
    A smaller clip norm: NaN divided by anything is NaN, and `norm > limit` is False for NaN.

    ## References
    torch.nn.utils.clip_grad_norm_ (error_if_nonfinite); pytorch/pytorch#46849
    """

    code = "LOG002"
    name = "gradient-norm-not-finite"
    cause = "CLIP_NONFINITE"
    severity = Severity.ERROR

    def check(self, subject: Log) -> Iterator[Finding]:
        loss = min(
            (s.first_bad.order for s in subject.of_role(Role.LOSS, Role.COMPONENT) if s.first_bad),
            default=None,
        )
        for series in subject.of_role(Role.NORM):
            first = series.first_bad
            if first is None or (loss is not None and loss <= first.order):
                continue
            lasting = series.ends_bad and (series.bad >= _IN_A_ROW or loss is not None)
            often = series.bad > _MANY * series.count and series.bad >= _IN_A_ROW
            if not (lasting or often) and _explained_by_scale(subject, series):
                continue
            yield self._finding(subject, series, lasting or often, before_loss=loss is not None)

    def _finding(self, log: Log, series: Series, grave: bool, before_loss: bool) -> Finding:
        first = series.first_bad
        if first is None:
            raise ValueError(series.name)
        trouble = log.trouble
        around = trouble.around if trouble is not None and trouble.point.order == first.order else {}
        then = "before any loss was" if before_loss else "while the loss stayed finite"
        hint = (
            ""
            if grave
            else "; steps that a GradScaler skips look like this, and are harmless where one is used"
        )
        return self.finding(
            f"{series.name} became {first.value:g} at {when(log, first)}, {then}: {series.bad} of {series.count} values"
            f"{', up to the end' if series.ends_bad else ''}{rate_text(log, around)}{hint}",
            fix="refuse a step whose norm is not finite before clipping, and find the operation with stayfinite run",
            evidence={
                "series": series.name,
                "first_step": first.step,
                "bad": series.bad,
                "values": series.count,
                "ends_bad": series.ends_bad,
                "around": around,
            },
            severity=None if grave or before_loss else Severity.INFO,
            **place(log, first),
        )


def _explained_by_scale(log: Log, series: Series) -> bool:
    """The loss scale fell about as often as the norm was not finite."""
    scales = log.of_role(Role.SCALE)
    return bool(scales) and log.happened.get("scale-fell", 0) >= 0.5 * series.bad
