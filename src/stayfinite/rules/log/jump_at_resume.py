"""LOG008: a jump where the run was resumed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Resume
from stayfinite.rules.log.story import place

_LEAST = 4
_FACTOR = 1.5
_RATE = 1.5


class JumpAtResume(Rule[Log]):
    """After a resume the loss or the learning rate is not where it was.

    ## What it finds
    A place where the step count goes back into the middle of the run (or the run's own record says it was restored),
    and after which the loss is at least half as large again as before, beyond its noise, or the learning rate differs
    by that much.

    ## Why it is bad
    Something was not restored: moments, scheduler, averages, the scaler, or the position in the data. The jump is the
    visible part; the run goes on with another optimizer than it had.

    ## Example
    Loss 0.8 at step 4000; resumed from step 4000 the next losses are 2.1

    ## The fix
    Save and load model, optimizer, scheduler, scaler, averages and random state together (`guard.save`), and compare
    the first losses after a resume with the last before it.

    ## The popular fix that does not work
    A new warm-up after each resume: it hides that the moments are missing, and costs what they had learnt.

    ## References
    ultralytics/yolov5#292; rules STA027 to STA038 for what was not restored
    """

    code = "LOG008"
    name = "jump-at-resume"
    cause = "RESUME_STATE_MISSING"
    severity = Severity.WARNING

    def check(self, subject: Log) -> Iterator[Finding]:
        for resume in subject.resumes:
            loss = _loss_jump(resume)
            rate = _rate_jump(resume)
            if loss is None and rate is None:
                continue
            parts = []
            if loss is not None:
                parts.append(f"{resume.loss} went from {loss[0]:.3g} to {loss[1]:.3g}")
            if rate is not None:
                parts.append(f"the learning rate from {rate[0]:.4g} to {rate[1]:.4g}")
            yield self.finding(
                f"at the resume at step {resume.point.step:g} (line {resume.point.line}) {' and '.join(parts)}",
                fix="restore optimizer, scheduler, scaler and averages together with the weights (guard.save/restore)",
                evidence={"step": resume.point.step, "loss": loss, "rate": rate},
                cause="RESUME_LR" if loss is None else None,
                **place(subject, resume.point),
            )


def _loss_jump(resume: Resume) -> tuple[float, float] | None:
    before = [value for value in resume.before if math.isfinite(value)]
    after = [value for value in resume.after if math.isfinite(value)]
    if len(before) < _LEAST or len(after) < _LEAST or min(before) <= 0:
        return None
    first, then = median(before), median(after)
    return (first, then) if then > max(_FACTOR * first, 1.2 * max(before)) else None


def _rate_jump(resume: Resume) -> tuple[float, float] | None:
    a, b = resume.rate_before, resume.rate_after
    if a is None or b is None or a <= 0 or b <= 0:
        return None
    return (a, b) if max(a, b) > _RATE * min(a, b) else None
