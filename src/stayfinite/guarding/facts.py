"""What is known of a refused step without replaying it: everything that is not finite, by kind and name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stayfinite.findings import TensorSummary
from stayfinite.findings.subjects.refused_step import RefusedStep, SpikeFacts
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.health import Health
from stayfinite.recover.scaling import Scaling
from stayfinite.watch.finite import nonfinite, summarize, tensors_in
from stayfinite.watch.spikes import Spike
from stayfinite.watch.verdict import Verdict
from stayfinite.watch.watcher import Trouble


def gather(
    step: int,
    trouble: Trouble,
    attempt: Attempt,
    verdict: Verdict,
    health: Health,
    scaling: Scaling,
    jumps: Mapping[str, Spike],
) -> RefusedStep:
    """Look at everything; called before the step is undone."""
    bad = _by_kind(health)
    culprits = [] if verdict.norm_is_finite else attempt.culprits()
    batches: Any = attempt.window.batches
    return RefusedStep(
        step=step,
        trigger="parameter" if trouble in ("setting", "scale", "update") else trouble,
        loss=verdict.own_loss if verdict.bad_rank is None else verdict.bad_loss,
        grad_norm=verdict.grad_norm,
        components={name: verdict.components.get(name, math.nan) for name in verdict.bad_components},
        batch=tuple(nonfinite(tensors_in(batches[0] if len(batches) == 1 else batches))),
        gradients=tuple(culprits),
        norm_overflowed=not verdict.norm_is_finite and not culprits,
        **bad,
        bad_update=trouble == "update",
        settings=tuple(attempt.bad_settings),
        scale=scaling.after_overflow(verdict.scale) if trouble == "gradient" else verdict.scale,
        scale_floor=scaling.floor if scaling.on else None,
        spikes=tuple(SpikeFacts(name, s.value, s.typical, s.deviations) for name, s in jumps.items()),
        observed=tuple(summarize(name, tensor) for name, tensor in attempt.window.observed.items()),
        rank=verdict.bad_rank,
    )


def of_state(step: int, health: Health) -> RefusedStep:
    """State that is bad between two steps: nothing is known of how it became so."""
    return RefusedStep(step, "parameter", None, None, **_by_kind(health))


_FIELDS = {"parameter": "parameters", "buffer": "buffers", "optimizer": "moments", "ema": "averages"}


def _by_kind(health: Health) -> dict[str, Any]:
    bad: dict[str, list[TensorSummary]] = {field: [] for field in _FIELDS.values()}
    for kind, summary in health.bad():
        bad[_FIELDS[kind]].append(summary)
    return {field: tuple(tensors) for field, tensors in bad.items()}
