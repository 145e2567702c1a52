"""Numerical stability: other precisions, larger inputs, growth through the blocks, one optimizer step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from stayfinite.findings.subjects.probed_model import Peak, Trial, UpdateSize
from stayfinite.probe import tree
from stayfinite.probe.bad_update import why_not_finite
from stayfinite.probe.batteries import Battery
from stayfinite.probe.growth import block_growths
from stayfinite.probe.lab import Lab, Parts
from stayfinite.probe.record import Record
from stayfinite.probe.sites import line_of_user
from stayfinite.watch.finite import nonfinite

FLOAT16_LIMIT = 65504.0
_PEAKS = 4


class StabilityBattery(Battery):
    """What happens in half precision, at twice and four times the input, and after an update."""

    order = 4
    name = "stability"
    title = "numerical stability"

    def run(self, lab: Lab, record: Record) -> None:
        self._precisions(lab, record)
        self._headroom(lab, record)
        self._growth(lab, record)
        self._scaled(lab, record)
        self._update(lab, record)

    def _precisions(self, lab: Lab, record: Record) -> None:
        made: list[Trial] = []
        for dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            made.append(self._cast(lab, dtype, name))
            made.append(
                lab.trial(
                    self.name,
                    f"autocast {name}",
                    around=lambda dtype=dtype: torch.autocast(_device(lab), dtype=dtype),
                )
            )
        for trial in made:
            # An op that does not exist in half, or a loss that mixes dtypes, says nothing about numbers.
            record.trials.append(
                Trial(self.name, trial.condition, "not run", trial.what)
                if trial.outcome == "raised"
                else trial
            )
        good = [trial.condition for trial in made if trial.outcome == "finite"]
        if good:
            record.note(self.name, "finite in " + ", ".join(["float32", *good]))
        for trial in made:
            if trial.outcome == "raised":
                record.note(self.name, f"{trial.condition}: not run, {trial.what}")

    def _cast(self, lab: Lab, dtype: torch.dtype, name: str) -> Trial:
        with lab.fresh_parts() as parts:
            if parts is None:
                return Trial(self.name, name, "raised", "the model cannot be copied")
            parts.model.to(dtype)
            if isinstance(parts.loss, nn.Module):
                parts.loss.to(dtype)
            batch = tree.changed(lab.batch, lambda t: t.to(dtype), _floats(lab.batch))
            return lab.trial(self.name, name, batch, parts=parts)

    def _headroom(self, lab: Lab, record: Record) -> None:
        watch = _Largest()
        run = lab.run(around=lambda: watch, backward=False)
        if run.error is not None:
            return
        record.peaks += watch.beyond[:_PEAKS]
        if watch.largest > 0:
            where = f" at {watch.place}" if watch.place else ""
            record.note(
                self.name,
                f"largest value {watch.largest:.3g} ({watch.op}{where}): "
                f"{FLOAT16_LIMIT / watch.largest:.3g} times below float16's limit",
            )

    def _growth(self, lab: Lab, record: Record) -> None:
        record.growths += block_growths(lab.parts.model, lambda: lab.run(backward=False))
        for growth in record.growths:
            ends = f"output {growth.rms[0]:.3g} at the first, {growth.rms[-1]:.3g} at the last"
            record.note(self.name, f"{len(growth.rms)} {growth.kind} in {growth.blocks}: {ends}")

    def _scaled(self, lab: Lab, record: Record) -> None:
        inputs = tree.inputs(lab.batch)
        for times in (2, 4):
            if inputs:
                batch = tree.replaced(lab.batch, {name: tensor * times for name, tensor in inputs.items()})
                record.trials.append(lab.trial(self.name, f"inputs x{times}", batch, expected="scaled"))

    def _update(self, lab: Lab, record: Record) -> None:
        with lab.fresh_parts() as parts:
            if parts is None or parts.optimizer is None:
                why = "the model cannot be copied" if parts is None else "no optimizer was given"
                record.note(self.name, f"one optimizer step: not run, {why}")
                return
            optimizer = lab.own_optimizer(parts)
            if optimizer is None:
                return
            before = {name: p.detach().clone() for name, p in parts.model.named_parameters()}
            run = lab.run(parts=parts, keep=True)
            if run.error is not None or run.bad is not None:
                return
            _step(optimizer, lab, parts)
            record.updates += [
                _update_size(parts.model, name, p, before[name], run.gradients.get(name))
                for name, p in parts.model.named_parameters()
                if p.requires_grad
            ]
            bad = nonfinite(parts.model.named_parameters())
            if bad:
                what = f"{bad[0].name} holds {bad[0].nan} NaN and {bad[0].inf} Inf after one update"
                cause = why_not_finite(optimizer, parts.model.get_parameter(bad[0].name))
                record.trials.append(Trial(self.name, "one optimizer step", "parameter", what, located=cause))
                return
            trial = lab.trial(self.name, "the batch after one optimizer step", parts=parts)
            record.trials.append(trial)
            ratios = [u.ratio for u in record.updates if u.is_weight and u.ratio is not None]
            if ratios:
                record.note(
                    self.name,
                    f"one update changes weights by {min(ratios):.2g} to {max(ratios):.2g} of their size",
                )


def _device(lab: Lab) -> str:
    first = next(lab.parts.model.parameters(), None)
    return first.device.type if first is not None else "cpu"


def _floats(batch: Any) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tree.named(batch).items() if tensor.is_floating_point()}


def _step(optimizer: Optimizer, lab: Lab, parts: Parts) -> None:
    def closure() -> Tensor:
        return lab.loss_of(parts, tree.copied(lab.batch)).total

    if type(optimizer).__name__ == "LBFGS":
        optimizer.step(closure)  # type: ignore[arg-type]
    else:
        optimizer.step()


def _update_size(
    model: nn.Module, name: str, parameter: Tensor, before: Tensor, gradient: Tensor | None
) -> UpdateSize:
    after = parameter.detach()
    dense = None if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient
    moving = torch.zeros_like(before, dtype=torch.bool) if dense is None else dense != 0
    owner = model.get_submodule(name.rpartition(".")[0])
    size = float(before.double().square().mean().sqrt()) if before.numel() else 0.0
    moved = float((after.double() - before.double()).square().mean().sqrt()) if before.numel() else 0.0
    return UpdateSize(
        name,
        str(before.dtype).removeprefix("torch."),
        int(moving.sum()),
        int((moving & (after == before)).sum()),
        moved / size if size > 0 else None,
        before.dim() >= 2 and not isinstance(owner, (nn.Embedding, nn.EmbeddingBag)),
    )


class _Largest(TorchDispatchMode):
    """The largest magnitude of all results, and the ops that went beyond float16's limit from inputs within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest, self.op, self.place = 0.0, "", ""
        self.beyond: list[Peak] = []
        self._lines: set[tuple[str | None, int | None]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(first, Tensor) or not first.is_floating_point() or not first.numel():
            return result
        name = str(func).removeprefix("aten.").partition(".")[0]
        if name.startswith(("empty", "new_empty")):  # memory that nobody has written yet
            return result
        size = _largest(first)
        if size is None or _is_constant(first, size):
            return result
        if size > self.largest:
            site = line_of_user()
            self.largest, self.op = size, name
            self.place = f"line {site.line}" if site else ""
        if size > FLOAT16_LIMIT and all((_largest(a) or 0.0) <= FLOAT16_LIMIT for a in _tensors(args)):
            site = line_of_user()
            line = (site.file, site.line) if site else (None, None)
            if line not in self._lines:
                self._lines.add(line)
                self.beyond.append(Peak(name, size, *line))
        return result


def _tensors(args: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for arg in args:
        found += [a for a in arg if isinstance(a, Tensor)] if isinstance(arg, (list, tuple)) else []
        if isinstance(arg, Tensor):
            found.append(arg)
    return [t for t in found if t.is_floating_point() and t.numel()]


def _largest(tensor: Tensor) -> float | None:
    value = float(tensor.detach().abs().max())
    return value if math.isfinite(value) else None


def _is_constant(tensor: Tensor, size: float) -> bool:
    """Values beyond the limit that are all one number were written there on purpose: a mask of -1e9."""
    if size <= FLOAT16_LIMIT:
        return False
    large = tensor.detach()[tensor.detach().abs() > FLOAT16_LIMIT]
    low, high = float(large.min()), float(large.max())
    return large.numel() > 1 and math.isclose(low, high, rel_tol=1e-5)
