"""Edge cases: unusual batches that a long training meets sooner or later, and outputs that are very sure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stayfinite.findings.subjects.probed_model import Trial
from stayfinite.probe.batteries import Battery
from stayfinite.probe.conditions import SINGLE_TOKEN, edge_conditions
from stayfinite.probe.lab import Lab
from stayfinite.probe.record import Record

_LEVELS = (20.0, 80.0)
"""Logits of a model that is sure (1 - sigmoid(20) is 0 in float32), and of one that over-fits. exp(80) is finite."""
_HEADS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear)


class EdgeBattery(Battery):
    """One trial for each condition."""

    order = 5
    name = "edge"
    title = "edge cases"

    def run(self, lab: Lab, record: Record) -> None:
        made: list[Trial] = []
        reach = ""
        for condition in edge_conditions(lab.probe, lab.batch, lab.parts.model):
            trial = lab.trial(self.name, condition.name, condition.batch, expected=condition.expected)
            if trial.failed and condition.name == SINGLE_TOKEN and trial.located.cause == "EMPTY_REDUCTION":
                record.note(self.name, f"{condition.name}: {trial.what}, for it leaves nothing to predict")
                continue
            made.append(trial)
            if condition.expected == "beyond":
                if trial.failed:
                    where = f" (line {trial.located.line})" if trial.located.line else ""
                    record.note(self.name, f"{condition.name}: {trial.what}{where}")
                    break  # larger ones fail as well, and say nothing more
                reach = condition.name
        if reach:
            record.note(self.name, f"finite up to {reach}")
        made += self._sure(lab)
        record.trials += made
        refused = [trial for trial in made if trial.outcome == "raised"]
        record.note(
            self.name, f"{sum(t.outcome == 'finite' for t in made)} of {len(made)} conditions stay finite"
        )
        for trial in refused:
            record.note(self.name, f"{trial.condition}: refused with {trial.what}")

    def _sure(self, lab: Lab) -> Iterator[Trial]:
        head = _last_head(lab)
        if head is None:
            return
        for level in _LEVELS:
            trial = lab.trial(
                self.name,
                f"confident outputs (up to {level:g})",
                around=lambda level=level: _scaled_output(head, level),
            )
            yield trial
            if trial.failed:
                return


def _last_head(lab: Lab) -> nn.Module | None:
    """The last linear or convolution layer that ran: what comes after it turns logits into a loss."""
    ran: list[nn.Module] = []
    hooks = [
        module.register_forward_hook(lambda module, _a, _o: ran.append(module))
        for module in lab.parts.model.modules()
        if isinstance(module, _HEADS)
    ]
    try:
        lab.run(backward=False)
    finally:
        for hook in hooks:
            hook.remove()
    return ran[-1] if ran else None


@contextmanager
def _scaled_output(head: nn.Module, level: float) -> Iterator[None]:
    """For a while the layer's output is as large as `level`."""

    def scale(_module: nn.Module, _args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return None
        largest = output.detach().abs().max().clamp_min(torch.finfo(output.dtype).tiny)
        return output * (level / largest) if bool(output.detach().any()) else None

    hook = head.register_forward_hook(scale)
    try:
        yield
    finally:
        hook.remove()
