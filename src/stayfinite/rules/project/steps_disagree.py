"""PRJ003: checkpoints of a step that the log has not reached."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.project import Project


class StepsDisagree(Rule[Project]):
    """Checkpoints of a run carry steps beyond the end of its log, while others lie within it.

    ## What it finds
    In one run: a checkpoint with a step above the last step of every log, and another one within the logs. Where no
    checkpoint lies within, steps and records are counted differently, and nothing is said.

    ## Why it is bad
    The log was cut off or overwritten by a second start, or the checkpoints of an older run lie in the same folder. A
    resume from "the newest" then goes on with another run.

    ## Example
    log.jsonl ends at step 400; step_000300.pt and step_009000.pt lie beside it

    ## The fix
    Find out where the later checkpoints come from before one of them is used; one folder a run.

    ## The popular fix that does not work
    Taking the highest step.

    ## References
    transformers get_last_checkpoint: the highest number in the folder
    """

    code = "PRJ003"
    name = "checkpoint-beyond-the-log"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.WARNING

    def check(self, subject: Project) -> Iterator[Finding]:
        for run in subject.runs:
            end = run.last_step
            if end is None or not all(log.counted for log in run.logs):
                continue
            known = [saved for saved in run.saved if saved.step is not None]
            beyond = [saved for saved in known if saved.step is not None and saved.step > end + 1]
            if not beyond or len(beyond) == len(known):
                continue
            yield self.finding(
                f"the step of {beyond[0].path} is {beyond[0].step}, the log of this run ends at step {end:g}"
                + (f" ({len(beyond)} such checkpoints)" if len(beyond) > 1 else ""),
                fix="find out which run wrote it before it is used; keep one folder a run",
                evidence={"step": beyond[0].step, "log_ends": end, "count": len(beyond)},
                file=beyond[0].path,
            )
