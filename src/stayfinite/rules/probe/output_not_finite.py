"""PRB001: a fresh model whose output is not finite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel
from stayfinite.rules.probe.phrases import born, by_place, conditions, evidence, place


class OutputNotFinite(Rule[ProbedModel]):
    """The forward pass of the model, as it is initialised, gives NaN or Inf, or raises.

    ## What it finds
    NaN (or an Inf that makes the loss bad) in an output or in a parameter, in training or in evaluation mode, on the
    factory's own batch; or an exception of the forward pass.

    ## Why it is bad
    Nothing can be learnt from it: the first step ends the training.

    ## Example
    `self.scale = nn.Parameter(torch.empty(8))`: memory that nobody initialised

    ## The fix
    Repair the line named; initialise every parameter and buffer.

    ## The popular fix that does not work
    `torch.nan_to_num` on the output: it turns a broken model into a constant one.

    ## References
    pytorch/pytorch#160016
    """

    code = "PRB001"
    name = "output-not-finite"
    cause = "UNKNOWN"  # that of the rule which explains the place, where one does
    severity = Severity.ERROR

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        for group in by_place(subject.failures("forward")):
            first = group[0]
            yield self.finding(
                f"{conditions(group)}: {first.what}{born(first.located)}",
                fix=first.located.fix or "repair the place named; initialise every parameter and buffer",
                evidence=evidence(first),
                cause=first.located.cause,
                **place(first.located),
            )
