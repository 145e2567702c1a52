"""CKP018: the ranks of one checkpoint were saved at different steps."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint


class RanksDisagree(Rule[Checkpoint]):
    """The files of different ranks were written at different steps, or their optimizers made unequal updates.

    ## What it finds
    In a checkpoint with one file per rank: unequal steps, and unequal counts of updates.

    ## Why it is bad
    Each rank holds a part of the same model. Parts of different times do not fit: the run resumes with a loss that
    jumps, or diverges slowly. It comes from a save that was interrupted, or from ranks that skip steps on their own.

    ## Example
    Rank 0 stopped at step 1400, ranks 1 to 7 wrote step 1300.

    ## The fix
    Go back to the last step that all ranks have. Let all ranks decide together whether to skip a step.

    ## The popular fix that does not work
    Setting the step to that of rank 0: the weights of the others are still older.

    ## References
    torch.distributed.checkpoint; DeepSpeed ZeRO checkpoints
    """

    code = "CKP018"
    name = "ranks-disagree"
    cause = "DIST_DESYNC"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        if len(set(subject.rank_steps.values())) > 1:
            yield self._report(subject, "step", {k: float(v) for k, v in subject.rank_steps.items()})
            return
        updates = {o.file: o.step for o in subject.optimizers if o.rank is not None and o.step is not None}
        if len(set(updates.values())) > 1:
            yield self._report(subject, "number of updates", updates)

    def _report(self, subject: Checkpoint, what: str, values: dict[str, float]) -> Finding:
        low, high = min(values, key=lambda k: values[k]), max(values, key=lambda k: values[k])
        return self.finding(
            f"the ranks have different values of {what}: {values[low]:g} in {low}, {values[high]:g} in {high}",
            fix="go back to the newest checkpoint that all ranks have completed",
            evidence={"lowest": values[low], "highest": values[high], "files": len(values)},
            file=subject.path,
        )
