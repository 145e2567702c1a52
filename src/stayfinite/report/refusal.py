"""One sentence on a refused step: what was bad, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stayfinite.findings import Incident
from stayfinite.findings.subjects.failed_step import FailedStep


def sentence(step: FailedStep) -> str:
    """For the terminal, the record and the final message of a stopped run."""
    where = f" on rank {step.rank}" if step.rank is not None else ""
    kept = [tensor.name for tensor in step.state]
    if step.bad_update:
        return _bad_update(step)
    if step.settings:
        return f"{step.settings[0]}, so no update was made with it"
    if step.trigger == "parameter" and not kept and step.scale is not None:
        return f"the loss scale is {step.scale}"
    if step.trigger == "parameter":
        return f"kept state is not finite: {listed(kept)}"
    if step.trigger == "spike":
        return "a spike: " + ", ".join(
            f"{s.quantity} {s.value:.4g}, typically {s.typical:.4g}" for s in step.spikes
        )
    if step.trigger == "loss":
        return f"the loss is {step.loss}{_components(step)}{where}{_batch(step)}"
    if step.norm_overflowed:
        return f"the sum of the squared gradients is beyond float32, although every gradient is finite{where}"
    return f"the gradient is not finite{where}: {listed(step.bad_gradients)}{_batch(step)}"


def _bad_update(step: FailedStep) -> str:
    # buffers are written by the forward pass
    made = [held.name for held in step.state if not held.before and held.owner != "buffer"]
    passed = [held.name for held in step.state if not held.before and held.owner == "buffer"]
    before = [tensor.name for tensor in step.state if tensor.before]
    before += passed
    if not made:
        return f"{listed(before)} held NaN or Inf before the optimizer's update, which was undone"
    also = f" ({listed(before)} held NaN or Inf before it)" if before else ""
    return f"the optimizer's update made {listed(made)} non-finite{also} and was undone"


def cause_and_fix(incident: Incident | None) -> str:
    """For the last message of a run: where it began, why, and what to do. Empty if that is not known."""
    if incident is None or not incident.findings:
        return ""
    birth, first = incident.birth, incident.findings[0]
    # without an op it is the line of the first finding that has one, which may tell of a consequence
    known = birth is not None and birth.op not in {finding.name for finding in incident.findings[1:]}
    place = f" It began at {Path(birth.file).name}:{birth.line}." if birth and birth.file and known else ""
    return f"{place} Cause: {first.code} {first.name}, {first.message}. Fix: {first.fix}."


def _components(step: FailedStep) -> str:
    return f" (component {listed(list(step.components))})" if step.components else ""


def _batch(step: FailedStep) -> str:
    if not step.batch:
        return ""
    first = step.batch[0].summary
    return f"; {first.name} holds {first.nan} NaN and {first.inf} Inf"


def listed(names: Sequence[str]) -> str:
    """The first three, and how many more."""
    if not names:
        return "unknown"
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
