"""Gradient flow: does every parameter get a finite gradient that is not zero, and how does it change with depth?"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stayfinite.findings.subjects.probed_model import CutGradient, ParameterGradient
from stayfinite.probe.batteries import Battery
from stayfinite.probe.lab import Lab
from stayfinite.probe.one_run import Run
from stayfinite.probe.record import Record
from stayfinite.probe.sites import line_of_user

_CLAMPS = {"clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_max", "hardtanh", "hardtanh_", "relu", "relu_",
           "relu6", "threshold", "hardsigmoid"}  # fmt: skip
_FEWEST = 8
"""A clamp of a handful of values may well have all of them at its edge."""
_NUDGE = 1e-2


class GradientBattery(Battery):
    """The gradient of one step, and once more after the parameters moved a little."""

    order = 3
    name = "gradient"
    title = "gradient flow"
    needs_finite_step = False

    def run(self, lab: Lab, record: Record) -> None:
        record.trials.append(lab.trial(self.name, "one batch"))
        cuts = _Cuts()
        first = lab.run(around=lambda: cuts, keep=True)
        if first.error is not None:
            return
        gradients = {name: None if g is None else g.detach().clone() for name, g in first.gradients.items()}
        later = self._after_a_nudge(lab, gradients)
        made = [
            _facts(
                name,
                parameter,
                gradients.get(name),
                later.get(name),
                _is_weight(lab.parts.model, name, parameter),
            )
            for name, parameter in lab.parts.model.named_parameters()
            if parameter.requires_grad
        ]
        record.gradients += made
        # What a clamp cuts matters where something above it stays without a gradient.
        record.cuts += [cut for cut in cuts.found() if any(g.zero or g.missing for g in made)]
        got = [g for g in made if not g.missing and not g.zero]
        if made:
            record.note(self.name, f"{len(got)} of {len(made)} parameters have a gradient")
        sizes = [g.rms for g in got if g.is_weight and g.rms > 0 and math.isfinite(g.rms)]
        if len(sizes) > 1:
            record.note(
                self.name,
                f"root mean square by layer, first to last: {sizes[0]:.3g} to {sizes[-1]:.3g} "
                f"(smallest {min(sizes):.3g}, largest {max(sizes):.3g})",
            )

    def _after_a_nudge(self, lab: Lab, gradients: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Zero-initialised branches (adapters, gates) have no gradient behind them until they have moved."""
        silent = [name for name, g in gradients.items() if g is None or not bool(g.any())]
        if not silent:
            lab.run(backward=False)  # puts the state back
            return gradients
        found: dict[str, Tensor | None] = dict(gradients)
        run: Run | None = None
        for _ in range(2):
            with torch.no_grad():
                for parameter in lab.parts.model.parameters():
                    if (
                        parameter.requires_grad
                        and parameter.grad is not None
                        and not parameter.grad.is_sparse
                    ):
                        parameter.sub_(_NUDGE * parameter.grad.sign())
            run = lab.run(keep=True)
        if run is not None and run.error is None and run.bad is None:
            found = dict(run.gradients)
        found = {name: None if g is None else g.detach().clone() for name, g in found.items()}
        lab.run(backward=False)
        return found


def _facts(
    name: str, parameter: Tensor, gradient: Tensor | None, later: Tensor | None, is_weight: bool
) -> ParameterGradient:
    zero = gradient is not None and not bool(gradient.any())
    rms = 0.0
    if gradient is not None and gradient.numel():
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        rms = float(dense.abs().double().square().mean().sqrt())
    later_zero = later is None or not bool(later.any())
    return ParameterGradient(name, is_weight, gradient is None, zero, rms, later_zero)


def _is_weight(model: nn.Module, name: str, parameter: Tensor) -> bool:
    owner = model.get_submodule(name.rpartition(".")[0])
    return parameter.dim() >= 2 and not isinstance(owner, (nn.Embedding, nn.EmbeddingBag))


class _Cuts(TorchFunctionMode):
    """Sees clamps and rectifiers, and whether any element gets through with its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str | None, int | None, str], list[tuple[int, bool]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _CLAMPS or not args or not isinstance(args[0], Tensor) or not args[0].requires_grad:
            return func(*args, **(kwargs or {}))
        before = args[0].detach().clone()
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.shape == before.shape and before.numel() >= _FEWEST:
            after = result.detach()
            passes = bool(((after == before) & ((name not in ("relu", "relu_")) | (before > 0))).any())
            site = line_of_user()
            key = (site.file if site else None, site.line if site else None, name)
            self._seen.setdefault(key, []).append((before.numel(), passes))
        return result

    def found(self) -> list[CutGradient]:
        """Lines at which nothing got through in any call."""
        return [
            CutGradient(call, max(numel for numel, _ in calls), file, line)
            for (file, line, call), calls in self._seen.items()
            if not any(passes for _, passes in calls)
        ]
