"""Loss: finite, each component finite, and of the size that guessing gives."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stayfinite.findings.subjects.probed_model import LossLevel
from stayfinite.probe.batteries import Battery
from stayfinite.probe.lab import Lab
from stayfinite.probe.record import Record
from stayfinite.probe.sites import line_of_user


class LossBattery(Battery):
    """One step's loss, and every cross entropy inside of it against chance level."""

    order = 2
    name = "loss"
    title = "loss"
    needs_finite_step = False

    def run(self, lab: Lab, record: Record) -> None:
        record.trials.append(lab.trial(self.name, "one batch"))
        levels = _Levels()
        run = lab.run(backward=False, around=lambda: levels)
        if run.error is not None or run.loss is None:
            return
        record.losses += levels.found
        parts = ", ".join(f"{name} {float(part):.4g}" for name, part in run.components.items())
        record.note(self.name, f"loss {float(run.loss):.4g}" + (f" ({parts})" if parts else ""))
        for level in levels.found[:4]:
            record.note(
                self.name,
                f"{level.call} {level.value:.4g}, guessing among {level.classes} gives {level.chance:.4g}",
            )


class _Levels(TorchFunctionMode):
    """Sees the calls of torch's own classification losses with a plain mean, whose chance level is known."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[LossLevel] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name not in ("cross_entropy", "binary_cross_entropy_with_logits"):
            return result
        given = {**dict(zip(("input", "target"), args, strict=False)), **kwargs}
        logits, target = given.get("input"), given.get("target")
        plain = kwargs.get("weight") is None and kwargs.get("pos_weight") is None and len(args) <= 2
        if (
            not plain
            or kwargs.get("reduction", "mean") != "mean"
            or not isinstance(logits, torch.Tensor)
            or not isinstance(target, torch.Tensor)
            or result.numel() != 1
            or not torch.isfinite(result)
        ):
            return result
        classes = 2
        if name == "cross_entropy":
            if target.is_floating_point():  # soft targets have a level of their own
                return result
            classes = logits.shape[1] if logits.dim() > 1 else logits.shape[0]
        elif not bool(((target == 0) | (target == 1)).all()):
            return result
        site = line_of_user()
        if classes > 1:
            self.found.append(
                LossLevel(name, float(result), math.log(classes), int(classes),
                          site.file if site else None, site.line if site else None)
            )  # fmt: skip
        return result
