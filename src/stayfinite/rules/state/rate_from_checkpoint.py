"""STA027: the rate of the checkpoint replaced the one that was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import LoadEvent
from stayfinite.findings.update_size import absurd_rate, largest_update, ruin
from stayfinite.rules.evidence import depth_of_run_cause


class RateFromCheckpoint(Rule[FailedStep]):
    """Loading optimizer or scheduler state silently replaced the learning rate that the script had set.

    ## What it finds
    `load_state_dict` of an optimizer after which the learning rate differs from the one it was made with and is
    used so, in a run without a schedule that would explain it; and loads that replace the base rate of a schedule.

    ## Why it is bad
    Param groups are part of the state: `--lr 1e-4` on the command line has no effect after `--resume`. Schedulers
    keep their old base and peak learning rates in the same way.

    ## Example
    `opt = SGD(params, lr=args.lr); opt.load_state_dict(ckpt["optimizer"])`

    ## The fix
    Set it again after loading, everywhere: `for g in opt.param_groups: g["lr"] = g["initial_lr"] = args.lr`, and
    the scheduler's `base_lrs`.

    ## The popular fix that does not work
    Editing only the scheduler, or the learning rate in the configuration: the load comes later and wins.

    ## References
    pytorch/examples#816
    """

    code = "STA027"
    name = "learning-rate-from-checkpoint"
    cause = "RESUME_LR"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "RUN001", "NUM025", "NUM021")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for load in subject.run.loads:
            if load.kind not in ("optimizer", "scheduler"):
                continue
            if not _trained_since(subject, load) and largest_update(subject) is None:
                continue  # it failed before any update was made at the loaded rate
            scheduled = bool(subject.run.schedulers) or _set_by_hand(subject, load)
            replaced = _replaced(load, scheduled=scheduled)
            if replaced is None:
                continue
            asked, got, what = replaced
            yield self.finding(
                f"the script asked for {what} {asked:g}, and load_state_dict brought {got:g}",
                fix='after loading: for g in opt.param_groups: g["lr"] = g["initial_lr"] = lr, and scheduler.base_lrs',
                evidence={
                    "asked": asked,
                    "loaded": got,
                    "used": load.lr_used,
                    "kind": load.kind,
                    "step": load.step,
                },
                depth=_depth(subject) if got > asked else depth_of_run_cause(subject),
                place=load.place,
            )


def _depth(subject: FailedStep) -> int:
    """Where an update of absurd size comes first, the file that brought its rate does."""
    ruined = subject.run.complete and not subject.births and ruin(subject.run.history) is not None
    return Depth.FIRST if ruined or absurd_rate(subject) else depth_of_run_cause(subject)


def _trained_since(step: FailedStep, load: LoadEvent) -> bool:
    """An update was made with what was loaded, before the failing step."""
    since = [r.applied for r in step.run.history if load.step <= r.step < step.step]
    return step.run.complete or (any(since) if since else load.step < step.step)


def _set_by_hand(step: FailedStep, load: LoadEvent) -> bool:
    """The script writes the learning rate into the param groups itself: it changes from step to step."""
    rates = {record.lr for record in step.run.history if record.step >= load.step and record.lr is not None}
    return len(rates) > 1


def _replaced(load: LoadEvent, *, scheduled: bool) -> tuple[float, float, str] | None:
    """(asked, got, what), when the load changed a rate that the run then uses."""
    if (
        load.base_before is not None
        and load.base_after is not None
        and _differ(load.base_before, load.base_after)
    ):
        return load.base_before, load.base_after, "a base learning rate of"
    if scheduled or load.kind != "optimizer" or load.lr_before is None or load.lr_after is None:
        return None  # under a schedule the rate of a checkpoint is meant to differ from the first one
    used = load.lr_used if load.lr_used is not None else load.lr_after
    if _differ(load.lr_before, load.lr_after) and not _differ(used, load.lr_after):
        return load.lr_before, load.lr_after, "a learning rate of"
    return None


def _differ(one: float, other: float) -> bool:
    return not math.isclose(one, other, rel_tol=1e-6, abs_tol=0.0)
