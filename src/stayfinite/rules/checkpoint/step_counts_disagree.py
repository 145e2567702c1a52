"""CKP012: counts of updates that do not fit together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Optimizer


class StepCountsDisagree(Rule[Checkpoint]):
    """The optimizer's counts of updates differ among its parameters, or exceed the step of the run.

    ## What it finds
    A count that is negative or not a number (error); an optimizer that made more updates than the trainer's own
    step says (warning: files of different times were mixed); parameters with fewer updates than the others
    (information: they had no gradient at times, as unused experts do).

    ## Why it is bad
    Adam corrects its moments by 1 - beta^step. A wrong count makes the first updates after loading too large or too
    small; files of two different times give weights with moments that do not belong to them.

    ## Example
    `model.safetensors` of step 500 beside `optimizer.pt` of step 1500.

    ## The fix
    Take all files from the same save. Where single parameters lag, check that they are meant to be unused at times.

    ## The popular fix that does not work
    Setting all counts to the largest one: the moments of the others are not that old.

    ## References
    Kingma and Ba, Adam, bias correction
    """

    code = "CKP012"
    name = "step-counts-disagree"
    cause = "RESUME_STATE_MISSING"
    severity = Severity.WARNING

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        for optimizer in subject.optimizers:
            impossible = {k: v for k, v in optimizer.steps.items() if not math.isfinite(v) or v < 0}
            if impossible:
                name, value = next(iter(impossible.items()))
                yield self.finding(
                    f"{optimizer.name}: parameter {name} has the step count {value}",
                    fix="take the optimizer state from a healthy checkpoint",
                    evidence={"parameter": name, "step": value, "parameters": len(impossible)},
                    file=optimizer.file,
                    severity=Severity.ERROR,
                    cause="CHECKPOINT_CORRUPT",
                )
                continue
            yield from self._lagging(optimizer)
            yield from self._ahead(subject, optimizer)

    def _lagging(self, optimizer: Optimizer) -> Iterator[Finding]:
        counts = Counter(optimizer.steps.values())
        if len(counts) < 2:
            return
        usual, _ = counts.most_common(1)[0]
        others = {name: value for name, value in optimizer.steps.items() if value != usual}
        name, value = min(others.items(), key=lambda item: item[1])
        yield self.finding(
            f"{optimizer.name}: {len(others)} of {len(optimizer.steps)} parameters have another step count than "
            f"{usual:g}, for example parameter {name} with {value:g}",
            fix="check that these parameters are meant to go without a gradient at times",
            evidence={"usual": usual, "different": len(others), "of": len(optimizer.steps), "lowest": value},
            file=optimizer.file,
            severity=Severity.INFO,
        )

    def _ahead(self, subject: Checkpoint, optimizer: Optimizer) -> Iterator[Finding]:
        """Only a trainer's own count is compared: `step` in a hand-written file may mean anything."""
        if subject.step_from not in ("trainer_state.json", "global_step") or optimizer.step is None:
            return
        if subject.step is not None and len(subject.optimizers) == 1 and optimizer.step > subject.step:
            yield self.finding(
                f"{optimizer.name} made {optimizer.step:g} updates and the run is at step {subject.step} "
                f"({subject.step_from}): these files are not from the same save",
                fix="take weights, optimizer and trainer state from the same save",
                evidence={
                    "optimizer_step": optimizer.step,
                    "step": subject.step,
                    "step_from": subject.step_from,
                },
                file=optimizer.file,
            )
