"""DST001: replicas that should stay equal and do not."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class ReplicasDrift(Rule[FailedStep]):
    """Replicas of one model decide differently (loss scale, skipped steps), so their weights drift apart.

    ## What it finds
    Copies that began bit for bit equal and were given the same reduced gradient, but unscaled it by different
    loss scales, skipped different steps, or hold different weights afterwards.

    ## Why it is bad
    Data parallel training assumes that all copies are the same model. Nothing checks it: the loss of each rank
    looks fine, and the average gradient belongs to none of them.

    ## Example
    A GradScaler per rank in which one rank saw an overflow: it halves its scale, the others do not. Or a rank that
    leaves out its update because its own loss is a spike: `if loss > 5 * average: continue`

    ## The fix
    Reduce the decision: all ranks take the maximum of `found_inf` (or of their own flag), the same scale, and step
    or skip together.

    ## The popular fix that does not work
    Broadcasting the weights every epoch: the drift within the epoch stays, and moments are not broadcast.

    ## References
    pytorch/pytorch#136009
    """

    code = "DST001"
    name = "replicas-drift"
    cause = "DIST_DESYNC"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        copies = [replica for replica in subject.run.replicas if replica.started_equal]
        if len(copies) < 2:
            return
        scales = {replica.scale for replica in copies if replica.scale is not None}
        skipped = {replica.skipped for replica in copies}
        apart = next((replica for replica in copies if not replica.equal), None)
        if apart is None and len(skipped) == 1 and len(scales) <= 1:
            return
        said = []
        if len(scales) > 1:
            said.append("loss scales " + ", ".join(f"{scale:g}" for scale in sorted(scales)))
        if len(skipped) > 1:
            said.append("skipped steps " + ", ".join(str(count) for count in sorted(skipped)))
        if apart is not None:
            drift = f" by up to {apart.drift:.2g}" if apart.drift is not None else ""
            said.append(f"weights of replica {apart.rank} differ{drift}")
        place = (apart or copies[-1]).place
        yield self.finding(
            f"{len(copies)} replicas that began equal disagree: {'; '.join(said)}",
            fix="all-reduce what decides (found_inf, a skip flag, the loss scale): all ranks step or skip together",
            evidence={
                "replicas": [
                    {
                        "rank": r.rank,
                        "scale": r.scale,
                        "skipped": r.skipped,
                        "equal": r.equal,
                        "drift": r.drift,
                    }
                    for r in copies
                ]
            },
            place=place,
        )
