"""CKP023: the scheduler remembers another rate than the optimizer has."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint


class SchedulerOverridesRate(Rule[Checkpoint]):
    """The optimizer's learning rate is not the one its scheduler set last: somebody changed one of the two.

    ## What it finds
    One optimizer and one scheduler with the same number of groups, whose present learning rates differ.

    ## Why it is bad
    After loading, the run makes one step at the optimizer's learning rate and then, at the scheduler's next step,
    jumps to the scheduler's. A learning rate that was lowered by hand comes back without a word.

    ## Example
    `optimizer.param_groups[0]["lr"] = 1e-5` in the training script, with a scheduler that still counts from 1e-3.

    ## The fix
    Change both: the groups' `lr` and `initial_lr` and the scheduler's `base_lrs`; or build a new scheduler.

    ## The popular fix that does not work
    Setting `lr` again after every load: the scheduler overwrites it at its next step.

    ## References
    torch.optim.lr_scheduler: how to adjust the learning rate
    """

    code = "CKP023"
    name = "scheduler-overrides-rate"
    cause = "RESUME_LR"
    severity = Severity.WARNING

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        if len(subject.optimizers) != 1 or len(subject.schedulers) != 1:
            return
        optimizer, scheduler = subject.optimizers[0], subject.schedulers[0]
        rates = [group.lr for group in optimizer.groups]
        if len(rates) != len(scheduler.last_lr) or None in rates:
            return
        for place, (rate, wanted) in enumerate(zip(rates, scheduler.last_lr, strict=True)):
            if rate is not None and not math.isclose(rate, wanted, rel_tol=1e-6, abs_tol=1e-15):
                yield self.finding(
                    f"{optimizer.name} group {place} has the rate {rate:g} and {scheduler.name} ({scheduler.kind}) set "
                    f"{wanted:g} last: at its next step the rate jumps",
                    fix="set lr and initial_lr of the groups and base_lrs of the scheduler together",
                    evidence={"optimizer": rate, "scheduler": wanted, "group": place, "kind": scheduler.kind},
                    file=optimizer.file,
                )
                return
