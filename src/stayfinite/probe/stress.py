"""Stress: a short run at ten times the learning rate; what breaks first shows where the model is weakest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings.subjects.probed_model import BlockGrowth, Located, StressResult
from stayfinite.guarding.locate import Trace
from stayfinite.probe import tree
from stayfinite.probe.bad_update import why_not_finite
from stayfinite.probe.growth import block_growths
from stayfinite.probe.lab import Lab, Parts, located
from stayfinite.probe.record import Record
from stayfinite.watch.finite import nonfinite

_TIMES = 10.0
_STEPS = 40
_DIVERGED = 10.0
"""A loss ten times its first value, and still rising, does not come back within a short run."""


@dataclass(slots=True)
class _Course:
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    first: str = ""
    what: str = ""
    where: Located = field(default_factory=Located)
    growths: list[BlockGrowth] = field(default_factory=list)  # of the last step that was finite


def stress_run(lab: Lab, record: Record) -> None:
    """The same steps at the rate itself and at ten times it, each from the initial state, on copies."""
    with lab.fresh_parts() as own, lab.fresh_parts() as stressed:
        if own is None or stressed is None or own.optimizer is None:
            why = "no optimizer was given" if own is not None else "the model cannot be copied"
            record.note("stress", f"not run: {why}")
            return
        rate = _rate(lab.own_optimizer(own))
        calm = _course(lab, own, 1.0)
        course = _course(lab, stressed, _TIMES)
    record.stress = StressResult(
        _TIMES, rate, tuple(course.losses), tuple(course.norms), course.first,
        len(course.losses) if course.first else None, course.what, not calm.first, course.where,
        len(calm.losses), tuple(calm.growths),
    )  # fmt: skip
    ends = f"{course.what} at step {len(course.losses)}" if course.first else f"finite for {_STEPS} steps"
    record.note("stress", f"at {_TIMES:g} times the learning rate ({rate * _TIMES:g}): {ends}")
    own_end = (
        f"{calm.what} at step {len(calm.losses)}"
        if calm.first
        else f"finite, loss {calm.losses[0]:.4g} to {calm.losses[-1]:.4g}"
    )
    record.note("stress", f"at the learning rate itself ({rate:g}): {own_end}")


def _rate(optimizer: Optimizer | None) -> float:
    return float(optimizer.param_groups[0].get("lr", 0.0)) if optimizer is not None else 0.0


def _course(lab: Lab, parts: Parts, times: float) -> _Course:
    optimizer = lab.own_optimizer(parts)
    assert optimizer is not None
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * times
    course = _Course()
    model = parts.model.train()
    torch.manual_seed(21)
    for _ in range(_STEPS):
        batch = tree.copied(lab.probe.make_batch() if callable(lab.probe.batch) else lab.batch)
        optimizer.zero_grad(set_to_none=True)
        loss, growths = _measured_loss(lab, parts, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [(n, p.grad) for n, p in model.named_parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm([g for _, g in gradients])) if gradients else 0.0
        course.losses.append(float(loss.detach()))
        course.norms.append(norm)
        value = course.losses[-1]
        if not math.isfinite(value):
            course.first, course.what = "loss", "the loss is not finite"
        elif bad := nonfinite(gradients):
            course.first, course.what = "gradient", f"the gradient of {bad[0].name} is not finite"
        elif abs(value) > _DIVERGED * max(abs(course.losses[0]), 1e-3) and value > course.losses[-2]:
            course.first = "divergence"
            course.what = f"the loss has grown from {course.losses[0]:.3g} to {value:.3g}"
        if course.first:
            if course.first != "divergence":
                course.where = _where(lab, parts, batch)
            return course
        course.growths = growths
        optimizer.step()
        if bad := nonfinite(model.named_parameters()):
            course.first, course.what = "parameter", f"{bad[0].name} is not finite after the update"
            course.where = why_not_finite(optimizer, model.get_parameter(bad[0].name))
            return course
    return course


def _measured_loss(lab: Lab, parts: Parts, batch: object) -> tuple[Tensor, list[BlockGrowth]]:
    losses: list[Tensor] = []
    growths = block_growths(parts.model, lambda: losses.append(lab.loss_of(parts, batch).total))
    return losses[0], growths


def _where(lab: Lab, parts: Parts, batch: object) -> Located:
    trace = Trace()
    lab.run(batch, parts=parts, trace=trace)
    return located(trace.evidence())
