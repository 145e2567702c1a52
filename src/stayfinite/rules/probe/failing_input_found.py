"""PRB015: the directed search found an input that fails."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel, SearchResult
from stayfinite.rules.probe.phrases import born, place


class FailingInputFound(Rule[ProbedModel]):
    """There is an input inside the declared range on which the step is not finite.

    ## What it finds
    The search drives the operands of risky ops (log, division, root, exp, power, norm, softmax and more) towards the
    edge of their domain, by the slope with respect to the inputs and from several starts, and found a batch that fails.
    An error inside a declared range, and inside that of the batch itself; a warning at up to ten times it.

    ## Why it is bad
    Training is a search as well, and a long one: what can be reached will be.

    ## Example
    `torch.sqrt(1 - (p * p).sum(-1))` for a point outside the unit sphere

    ## The fix
    Make the line named safe on its whole range; keep the test that is printed.

    ## The popular fix that does not work
    Skipping the batches that fail: the gradient near the edge is wrong as well.

    ## References
    RANUM: Reliability Assurance for Deep Neural Network Architectures Against Numerical Defects, ICSE 2023
    """

    code = "PRB015"
    name = "failing-input-found"
    cause = "UNKNOWN"  # that of the rule which explains the place, where one does
    severity = Severity.ERROR

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        told = {(t.located.file, t.located.line) for t in subject.trials if t.failed and t.battery == "edge"}
        for result in subject.searches:
            if not result.counts:
                continue
            if (result.located.file, result.located.line) in told and result.located.line is not None:
                continue  # an edge case fails at this very line: said already
            within = _within(result)
            yield self.finding(
                f"{result.condition}, {within}: {result.what}{born(result.located)}",
                fix=result.located.fix or "make this line safe on the whole range of its inputs",
                evidence={"battery": "search", "condition": result.condition, "op": result.located.op,
                          "ranges": {name: list(pair) for name, pair in result.ranges.items()}, "trials": result.trials,
                          "times": result.times, "explained_by": result.located.explained_by},
                severity=Severity.ERROR if result.declared or result.times <= 1 else Severity.WARNING,
                cause=result.located.cause,
                **place(result.located),
            )  # fmt: skip


def _within(result: SearchResult) -> str:
    if result.declared:
        return "inside the declared range"
    if result.times <= 1:
        return "inside the range of the batch"
    return f"at {result.times:g} times the range of the batch"
