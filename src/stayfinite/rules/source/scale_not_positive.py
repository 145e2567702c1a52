"""SRC038: a distribution whose scale can be zero or negative."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, origin


class ScaleCanBeZero(Rule[SourceFile]):
    """The scale of a distribution can be zero or negative.

    ## What it finds
    Normal, LogNormal, Laplace, Cauchy, HalfNormal, Gamma and Beta whose scale (or rate, concentration)
    comes straight from a layer, a ReLU, a sigmoid or a deviation.

    ## Why it is bad
    A scale of 0 gives log(0) and a division by 0 in log_prob, a negative one an error message far from its
    cause. A network that fits well drives its own scale to zero.

    ## Example
    `torch.distributions.Normal(mu, F.relu(self.sigma(x)))`

    ## The fix
    `F.softplus(x) + 1e-4`, or a bounded log-scale: `log_std.clamp(-20, 2).exp()`.

    ## The popular fix that does not work
    `validate_args=False`: it removes the message, not the value.

    ## References
    motokimura/PyTorch_Gaussian_YOLOv3#23
    """

    code = "SRC038"
    name = "scale-can-be-zero"
    cause = "DIST_PARAM"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named(
            "Normal", "LogNormal", "Laplace", "Cauchy", "HalfNormal", "Gamma", "Beta"
        ):
            position = 0 if operation.name == "HalfNormal" else 1
            scale = operation.option("scale", position)
            if scale is None or operation.guarded or scale.kind == "number":
                continue
            raw = scale.has("parameter")  # a raw parameter: the optimizer may take it below zero
            if not scale.known and not raw:
                continue
            if (not raw and not (scale.reaches(0.0) or scale.below(0.0))) or (
                scale.has("literal") and scale.low > 0
            ):
                continue
            yield self.finding(
                f"the scale of {operation.name} is "
                f"{'a raw parameter' if raw else origin(scale)}, so it can be zero or negative",
                fix="F.softplus(x) + 1e-4, or log_std.clamp(-20, 2).exp()",
                evidence=evidence(operation, scale),
                **at(subject, operation),
            )
