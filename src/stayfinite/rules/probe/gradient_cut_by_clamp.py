"""PRB007: a clamp or rectifier that stops every gradient."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel


class GradientCutByClamp(Rule[ProbedModel]):
    """Every element lies at the edge of a clamp (or below a rectifier), so that no gradient gets through.

    ## What it finds
    A line with clamp, hardtanh, relu or the like at which no element of any call passes with its gradient, in a step
    in which some parameter gets no gradient.

    ## Why it is bad
    Outside of its bounds a clamp has the gradient 0: what is before it is not trained, and the loss is merely constant.

    ## Example
    `p = model(x).clamp(1e-6, 1 - 1e-6)` where the model's output is negative throughout

    ## The fix
    Use a smooth function (sigmoid, softplus), or start inside the bounds.

    ## The popular fix that does not work
    Wider bounds: the values keep drifting to the next edge.

    ## References
    ai2cm/ace#949
    """

    code = "PRB007"
    name = "gradient-cut-by-clamp"
    cause = "WHERE_UNSAFE_BRANCH"
    severity = Severity.WARNING

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        silent = [g.name for g in subject.gradients if (g.missing or g.zero) and g.later_zero]
        if not silent:
            return
        for cut in subject.cuts:
            yield self.finding(
                f"{cut.call} stops the gradient of all {cut.numel} elements; {len(silent)} parameters get none, "
                f"{silent[0]} among them",
                fix="use a smooth function, or bring the values inside the bounds",
                evidence={"battery": "gradient", "call": cut.call, "numel": cut.numel, "parameters": silent},
                file=cut.file,
                line=cut.line,
            )
