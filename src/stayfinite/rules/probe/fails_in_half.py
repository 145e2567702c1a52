"""PRB008: finite in float32, not in half precision."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel
from stayfinite.rules.probe.phrases import born, by_place, conditions, evidence, place

_HALF = ("bfloat16", "float16", "autocast bfloat16", "autocast float16")


class FailsInHalf(Rule[ProbedModel]):
    """The step is finite as it is, and not with the model in half precision or under autocast.

    ## What it finds
    A loss or gradient that is not finite when the same step runs in bfloat16, in float16, or under autocast
    with either.

    ## Why it is bad
    The day the precision is switched the run dies in its first steps. float16 ends at 65504, and an eps of
    1e-8 is 0 in it.

    ## Example
    `torch.log(p + 1e-8)` under float16 autocast, where p is exactly 0

    ## The fix
    Compute the line named in float32, or in a form that does not leave the range; or stay in bfloat16 or float32.

    ## The popular fix that does not work
    A smaller loss scale: it does not change what overflows in the forward pass.

    ## References
    pytorch/pytorch#40497
    """

    code = "PRB008"
    name = "fails-in-half"
    cause = "UNKNOWN"  # that of the rule which explains the place, where one does
    severity = Severity.WARNING

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        for group in by_place(t for t in subject.failures("stability") if t.condition in _HALF):
            first = group[0]
            yield self.finding(
                f"in {conditions(group)}: {first.what}{born(first.located)}",
                fix=first.located.fix or "compute this line in float32, or do not use this precision",
                evidence=evidence(first, conditions=[t.condition for t in group]),
                cause=first.located.cause,
                **place(first.located),
            )
