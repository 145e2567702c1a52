"""STA032: a loaded state that is not finite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class LoadedNotFinite(Rule[FailedStep]):
    """The state that was loaded already held NaN or Inf.

    ## What it finds
    `load_state_dict` of a model or an optimizer with tensors that are not finite, in a run that then fails. (Of an
    optimizer the cause is called STATE_POISONED: the weights may be whole.)

    ## Why it is bad
    Training continues from a dead model, and its first loss is NaN whatever the data and the learning rate are.

    ## Example
    The last checkpoint was written after the NaN, and the healthy ones before it were rotated away

    ## The fix
    Load an earlier checkpoint that `stayfinite scan` calls healthy; verify before writing and keep one known good
    copy.

    ## The popular fix that does not work
    Starting over with a lower rate: the file is what is wrong.

    ## References
    ultralytics/ultralytics#24615
    """

    code = "STA032"
    name = "loaded-not-finite"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR
    more_specific_than = ("STA011", "STA027", "RUN010", "RUN001", "NUM025", "NUM021")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for load in subject.run.loads:
            if not load.nonfinite or not (subject.births or subject.state) or load.step > subject.step:
                continue  # what is loaded after the failure is no cause of it
            moments = load.kind == "optimizer"  # the weights are another load's
            shown = ", ".join(load.nonfinite[:3]) + (", ..." if len(load.nonfinite) > 3 else "")
            yield self.finding(
                f"the {load.kind} state that was loaded is not finite: {shown}",
                fix="load an earlier checkpoint that `stayfinite scan` calls healthy",
                cause="STATE_POISONED" if moments else None,
                evidence={"tensors": list(load.nonfinite[:20]), "kind": load.kind},
                depth=Depth.UPSTREAM,
                place=load.place,
            )
