"""CKP022: the rate in the checkpoint is not the one in the configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint

_OVERRIDE = (
    "after loading, for each group: group['lr'] = group['initial_lr'] = NEW (OneCycleLR: also max_lr and min_lr), and "
    "scheduler.base_lrs = [NEW, ...]; or do not load the scheduler's state and build it with last_epoch"
)


class RateDiffersFromConfig(Rule[Checkpoint]):
    """The configuration asks for one learning rate and the checkpoint brings another, which wins on resume.

    ## What it finds
    A learning rate in a configuration file (`--config`, or one found beside the checkpoint) that is neither the
    present, the initial nor the peak learning rate of any group of the optimizer or its scheduler.

    ## Why it is bad
    `load_state_dict` of optimizer and scheduler restores the learning rates of the time of saving. A lower learning
    rate in the config, set to cure a divergence, has no effect at all, and nothing says so.

    ## Example
    config: lr 1e-4. Checkpoint: OneCycleLR with a peak of 5e-4, now at 4.92e-4. The run resumes at 4.92e-4.

    ## The fix
    Override after loading: `for g in optimizer.param_groups: g["lr"] = g["initial_lr"] = 1e-4`, and the same for
    `scheduler.base_lrs` (OneCycleLR reads `max_lr` and `min_lr` of the groups).

    ## The popular fix that does not work
    Editing the config and resuming. Setting only `group["lr"]`: the scheduler writes its own learning rate at its
    next step.

    ## References
    ultralytics/yolov5#292
    """

    code = "CKP022"
    name = "learning-rate-differs-from-config"
    cause = "RESUME_LR"
    severity = Severity.WARNING

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        stored = subject.rates()
        if not stored or not subject.configured:
            return
        known = [rate for rates in stored.values() for rate in rates]
        if any(_close(item.value, rate) for item in subject.configured for rate in known):
            return
        item = subject.configured[0]
        now = [
            group.lr for optimizer in subject.optimizers for group in optimizer.groups if group.lr is not None
        ]
        current = f"{now[0]:g}" if now else "unknown"
        initial = _listed(stored["initial"])
        peak = _listed(stored["peak"])
        yield self.finding(
            f"{item.key} is {item.value:g} in {item.file}, but the checkpoint resumes with {current} "
            f"(initial {initial}, peak {peak})",
            fix=_OVERRIDE.replace("NEW", f"{item.value:g}"),
            evidence={
                "configured": item.value,
                "config": item.file,
                "key": item.key,
                "current": now[0] if now else None,
                "initial": stored["initial"],
                "peak": stored["peak"],
            },
            file=subject.path,
        )


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3)


def _listed(rates: list[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates[:4])
