"""PRJ001: the optimizer's saved rate is not the one the log shows at that step."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Role, Series
from stayfinite.findings.subjects.project import Project, ProjectRun, SavedState

_FACTOR = 1.5


class RateInStateDiffers(Rule[Project]):
    """A checkpoint holds another learning rate than the log of its run shows around that step.

    ## What it finds
    The rate of every parameter group in the saved optimizer lies outside the rates that the log has just before, at and
    just after the checkpoint's step, by a factor of 1.5 or more.

    ## Why it is bad
    Either the logged rate is not the one that trains (a scheduler's `get_last_lr` of another optimizer, a rate that is
    logged before a rule scales it), or the checkpoint is of another run. A resume goes on with the saved one.

    ## Example
    the log says 1e-4 at step 5000, `optimizer.param_groups[0]["lr"]` in step_5000.pt is 5e-4

    ## The fix
    Log `optimizer.param_groups[0]["lr"]` itself; check that the checkpoint belongs to the log.

    ## The popular fix that does not work
    Setting the rate in the configuration: neither of the two reads it on resume.

    ## References
    rules CKP022 and LOG013, which compare each of them with the configuration
    """

    code = "PRJ001"
    name = "saved-rate-differs-from-log"
    cause = "RESUME_LR"
    severity = Severity.WARNING

    def check(self, subject: Project) -> Iterator[Finding]:
        for run in subject.runs:
            for saved in run.saved:
                logged = _logged(run, saved)
                stored = saved.checkpoint.rates().get("current", [])
                if not logged or not stored:
                    continue
                low, high = min(low for low, _ in logged), max(high for _, high in logged)
                if any(low / _FACTOR <= rate <= high * _FACTOR for rate in stored):
                    continue
                yield self.finding(
                    f"the optimizer in {saved.path} has a learning rate of {stored[-1]:.4g}, the log shows {low:.4g}"
                    f"{f' to {high:.4g}' if high > low else ''} around step {saved.step}",
                    fix="log optimizer.param_groups[0]['lr'] itself, and check that this checkpoint is of this run",
                    evidence={"stored": stored, "logged": [low, high], "step": saved.step},
                    file=saved.path,
                )


def _logged(run: ProjectRun, saved: SavedState) -> list[tuple[float, float]]:
    """Of every logged rate the range around the checkpoint's step; none at the end, where the next is not known."""
    if saved.step is None:
        return []
    series = [s for log in run.logs if log.counted for s in log.of_role(Role.RATE)]
    found = [_around(one, saved.step) for one in series]
    return [one for one in found if one is not None]


def _around(series: Series, step: int) -> tuple[float, float] | None:
    buckets = [bucket for bucket in series.buckets if bucket.finite]
    place = next((i for i, bucket in enumerate(buckets) if bucket.step <= step <= bucket.last_step), None)
    if place is None:
        later = next((i for i, bucket in enumerate(buckets) if bucket.step > step), None)
        if not later:
            return None
        place = later
    if place + 1 >= len(buckets):
        return None
    near = buckets[max(0, place - 1) : place + 2]
    return min(bucket.low for bucket in near), max(bucket.high for bucket in near)
