"""PRB006: gradients that vanish or explode from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel

_FEWEST = 6
_RATIO = 1e4


class GradientChangesWithDepth(Rule[ProbedModel]):
    """The gradient of the first layers is ten thousand times smaller, or larger, than that of the last.

    ## What it finds
    At least 6 weight matrices or kernels, where the median root mean square of the gradient in the first third and that
    in the last third differ by more than 10,000, with the middle third in between.

    ## Why it is bad
    Vanishing: the first layers are not trained. Exploding: the first layers spike, and no learning rate fits both.

    ## Example
    Twenty linear layers with sigmoids

    ## The fix
    Residual connections, normalisation, an initialisation that keeps the variance, other activations.

    ## The popular fix that does not work
    A higher learning rate: the last layers diverge before the first ones move.

    ## References
    Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010
    """

    code = "PRB006"
    name = "gradient-changes-with-depth"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        weights = [g for g in subject.gradients if g.is_weight and g.rms > 0 and math.isfinite(g.rms)]
        if len(weights) < _FEWEST:
            return
        third = len(weights) // 3
        first, middle, last = (
            median(g.rms for g in part) for part in (weights[:third], weights[third:-third], weights[-third:])
        )
        ratio = first / last
        if not (ratio > _RATIO or ratio < 1 / _RATIO) or not min(first, last) < middle < max(first, last):
            return
        vanishing = ratio < 1
        yield self.finding(
            f"the gradient {'vanishes' if vanishing else 'explodes'} towards the first layers: root mean square "
            f"{first:.2g} in the first third, {middle:.2g} in the middle, {last:.2g} in the last, over "
            f"{len(weights)} layers",
            fix="add residual connections or normalisation, or initialise so that the variance is kept by each layer",
            evidence={"battery": "gradient", "first": first, "middle": middle, "last": last, "layers": len(weights),
                      "first_layer": weights[0].name, "last_layer": weights[-1].name},
        )  # fmt: skip
