"""PRB003: a fresh classifier that does much worse than guessing."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel

_FACTOR = 3.0
_MARGIN = 1.0


class LossFarFromChance(Rule[ProbedModel]):
    """A cross entropy starts far above what guessing gives.

    ## What it finds
    A call of cross_entropy or binary_cross_entropy_with_logits (plain mean, no weights) whose value is more than 3
    times ln(classes) plus 1. A loss below chance is not reported: the model may be trained already.

    ## Why it is bad
    The logits of a fresh model are far too large: it is sure of wrong answers. The first steps then only shrink the
    last layer, with gradients large enough to spike.

    ## Example
    `nn.init.normal_(head.weight, std=10)`

    ## The fix
    Initialise the last layer small (zeros, or a deviation of 0.02), and scale attention and residual branches.

    ## The popular fix that does not work
    Gradient clipping: the steps are then small, and the loss stays high for long.

    ## References
    The check "verify loss at init" of A Recipe for Training Neural Networks (Karpathy, 2019)
    """

    code = "PRB003"
    name = "loss-far-from-chance"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        for level in subject.losses:
            if level.value > _FACTOR * level.chance + _MARGIN:
                yield self.finding(
                    f"{level.call} is {level.value:.4g} before training, guessing among {level.classes} classes gives "
                    f"{level.chance:.3g}",
                    fix="initialise the last layer smaller; look for logits that are not scaled",
                    evidence={
                        "battery": "loss",
                        "value": level.value,
                        "chance": level.chance,
                        "classes": level.classes,
                    },
                    file=level.file,
                    line=level.line,
                )
