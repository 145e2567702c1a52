"""PRJ004: a finite checkpoint that was written while the run was failing."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.project import Project, SavedState


class SavedInFailure(Rule[Project]):
    """Every number of a checkpoint is finite, and it was written while the loss or gradient norm no longer was.

    ## What it finds
    A healthy checkpoint whose step lies inside the window of failure of its run's log; or one that the user's own probe
    (`--probe`) found to give values that are not finite.

    ## Why it is bad
    A run whose batches are all skipped keeps finite weights and saves them, step after step: a scan of the parameters
    says "healthy", and every forward pass gives NaN. Resumed, the run fails at its first step.

    ## Example
    the loss is NaN from step 17 on; step_000040.pt and step_000080.pt are finite and dead

    ## The fix
    Go back to a checkpoint from before the window; put a forward pass into the check of a checkpoint (`--probe`,
    `Guard(probe=...)`).

    ## The popular fix that does not work
    `all(torch.isfinite(p).all() for p in model.parameters())` before loading.

    ## References
    docs/doctor.md, docs/guard.md (probe)
    """

    code = "PRJ004"
    name = "saved-during-the-failure"
    cause = "STATE_POISONED"
    severity = Severity.ERROR

    def check(self, subject: Project) -> Iterator[Finding]:
        for run in subject.runs:
            inside = run.saved_in_failure()
            good = run.last_good()
            if inside and run.window is not None:
                first = inside[0]
                others = f", like {len(inside) - 1} later ones" if len(inside) > 1 else ""
                failure = f"({run.window.series} not finite, {run.window.words})"
                after = first.step is not None and first.step > run.window.last
                when = (
                    f"too soon after the failure {failure} to say that the run had come back"
                    if after
                    else f"inside the failure {failure}"
                )
                yield self.finding(
                    f"every number in {first.path} is finite, but it was written at step {first.step}, {when}{others}: "
                    "do not resume from it",
                    fix=_fix(good),
                    evidence={
                        "steps": [saved.step for saved in inside],
                        "first_bad": run.window.first,
                        "last_bad": run.window.last,
                        "log": run.window.log,
                    },
                    file=first.path,
                )
            for saved in run.saved:
                if saved.dead is not None and saved.probed and saved.healthy and saved not in inside:
                    yield self.finding(
                        f"every number in {saved.path} is finite, but the probe says: {saved.dead}",
                        fix=_fix(good),
                        evidence={"probe": saved.dead, "step": saved.step},
                        file=saved.path,
                    )


def _fix(good: SavedState | None) -> str:
    if good is None:
        return "no checkpoint of this run is known to be good: start again, or from one of another run"
    return f"start from {good.path}"
