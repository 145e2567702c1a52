"""PRJ005: which checkpoint stands before the failure, or that there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.project import Project, ProjectRun


class LastGoodBeforeFailure(Rule[Project]):
    """A run has failed: the last checkpoint before the trouble, or that there is none.

    ## What it finds
    A log with a window of failure and checkpoints beside it: the newest one that is whole and finite, that no probe
    speaks against, and that was written before the window (or after the run had come back).

    ## Why it is bad
    "latest" points at what was saved last, and after a failure that is the wrong one. Where the interval between two
    checkpoints is longer than the way to the failure, there is nothing to go back to.

    ## Example
    the loss is NaN from step 1240 on; the last checkpoint before the trouble is step_001000.pt

    ## The fix
    Start from the one that is named. Where there is none: save more often than the failure comes, and keep the last
    good one (`guard.save`, or the last good copy of `stayfinite run`).

    ## The popular fix that does not work
    Resuming from `last.pt` at a lower rate: NaN weights stay NaN at any rate.

    ## References
    stayfinite scan --last-good
    """

    code = "PRJ005"
    name = "last-good-before-failure"
    cause = "STATE_POISONED"
    severity = Severity.INFO

    def check(self, subject: Project) -> Iterator[Finding]:
        for run in subject.runs:
            window = run.window
            if window is None or not run.saved:
                continue
            good = run.last_good()
            if good is not None:
                yield self.finding(
                    f"the last checkpoint before the trouble is {good.path} ({good.step_words}); {window.series} is "
                    f"not finite at {window.words}{_ahead(run)}",
                    fix=f"start from {good.path}, after the cause is cured",
                    evidence={
                        "step": good.step,
                        "path": good.path,
                        "first_bad": window.first,
                        "last_bad": window.last,
                    },
                    file=window.log,
                    line=window.line,
                )
                continue
            steps = [saved.step for saved in run.saved if saved.step is not None]
            unknown = [saved for saved in run.saved if saved.fit and run.outside_failure(saved) is None]
            if unknown:
                message = (
                    f"{unknown[-1].path} is finite, but it does not say its step, so that it cannot be compared with "
                    f"the failure ({window.words})"
                )
            else:
                message = (
                    f"no checkpoint from before the trouble ({window.words}) is good: {_why_none(run, steps)}"
                )
            early = [step for step in steps if step < window.first]
            yield self.finding(
                message,
                fix="cure the cause and start again; keep more than one checkpoint, and verify each when it is written"
                if early
                else "cure the cause and start again; save more often than the failure came",
                evidence={"steps": steps, "first_bad": window.first, "last_bad": window.last},
                file=window.log,
                line=window.line,
                severity=Severity.WARNING,
            )


def _why_none(run: ProjectRun, steps: Sequence[int]) -> str:
    """What is wrong with those from before, or that the first one came too late."""
    early = [
        saved
        for saved in run.saved
        if run.window is not None and saved.step is not None and saved.step < run.window.first
    ]
    if not early:
        return f"the first of {len(run.saved)} was written at step {min(steps) if steps else 'unknown'}"
    newest = early[-1]
    return f"{newest.path} (step {newest.step}): {newest.reason or newest.dead}"


def _ahead(run: ProjectRun) -> str:
    good = run.last_good()
    if good is not None and run.grown(good) and run.window is not None:
        return (
            f"; it is the first of those that were written while the run was growing towards the failure, since step "
            f"{run.window.grew_from:g}"
        )
    bad = [
        saved
        for saved in run.saved
        if not saved.fit or run.outside_failure(saved) is False or run.grown(saved)
    ]
    return f"; {len(bad)} later or bad ones are not to be used" if bad else ""
