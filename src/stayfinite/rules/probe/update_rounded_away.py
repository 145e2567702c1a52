"""PRB012: an update smaller than half a unit in the last place."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel

_SHARE = 0.5
_FEWEST = 16


class UpdateRoundedAway(Rule[ProbedModel]):
    """One optimizer step leaves most weights bit for bit the same, although they have a gradient.

    ## What it finds
    At least half of all elements with a gradient that is not zero did not change: the update is below half a unit in
    the last place of the weight.

    ## Why it is bad
    bfloat16 has 8 bits: an update below 1/512 of its weight is rounded to nothing, every time. Nothing is NaN, the loss
    is flat.

    ## Example
    `SGD(model.bfloat16().parameters(), 1e-4)`

    ## The fix
    float32 weights with autocast, a float32 master copy, or stochastic rounding. In float32: a higher learning rate.

    ## The popular fix that does not work
    A higher rate for half weights: small weights move too far before large ones move at all.

    ## References
    meta-pytorch/torchtune#2254
    """

    code = "PRB012"
    name = "update-rounded-away"
    cause = "BF16_PRECISION"
    severity = Severity.WARNING

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        for dtype in sorted({update.dtype for update in subject.updates}):
            mine = [update for update in subject.updates if update.dtype == dtype and update.with_gradient]
            elements, unchanged = sum(u.with_gradient for u in mine), sum(u.unchanged for u in mine)
            if elements < _FEWEST or unchanged < _SHARE * elements:
                continue
            yield self.finding(
                f"after one optimizer step {unchanged} of {elements} {dtype} weights with a gradient are bit for bit "
                "the same",
                fix="raise the learning rate" if dtype in ("float32", "float64") else
                "keep float32 weights and run the forward pass under autocast, or use a float32 master copy",
                evidence={"battery": "stability", "dtype": dtype, "elements": elements, "unchanged": unchanged},
                cause="CONFIG_MISTAKE" if dtype in ("float32", "float64") else None,
            )  # fmt: skip
