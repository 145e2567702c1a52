"""What is known of a refused step without replaying it: everything that is not finite, by kind and name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import SpikeFacts, StateTensor
from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.health import Health
from stayfinite.recover.scaling import Scaling
from stayfinite.watch.finite import nonfinite, peak, summarize, tensors_in
from stayfinite.watch.spikes import Spike
from stayfinite.watch.verdict import StepVerdict
from stayfinite.watch.watcher import Trouble

_OWNERS = {"parameter": "parameter", "buffer": "buffer", "optimizer": "optimizer state", "ema": "average"}
_PHASES: dict[Trouble, str] = {
    "loss": "forward",
    "gradient": "backward",
    "spike": "forward",
    "setting": "optimizer",
    "scale": "state",
    "update": "optimizer",
}


def gather(
    step: int,
    trouble: Trouble,
    attempt: Attempt,
    verdict: StepVerdict,
    health: Health,
    scaling: Scaling,
    jumps: Mapping[str, Spike],
    culprits: Sequence[str],
) -> FailedStep:
    """Look at everything; called before the step is undone. `culprits`: gradients that are bad, on whichever rank."""
    overflowed = not verdict.norm_is_finite and not culprits
    batches: Any = attempt.window.batches
    batch = tuple(
        Operand(bad, "batch") for bad in nonfinite(tensors_in(batches[0] if len(batches) == 1 else batches))
    )
    return FailedStep(
        step=step,
        phase="data" if batch else _PHASES[trouble],
        trigger="parameter" if trouble in ("setting", "scale", "update") else trouble,
        loss=verdict.own_loss if verdict.bad_rank is None else verdict.bad_loss,
        grad_norm=verdict.grad_norm,
        components={name: verdict.components.get(name, math.nan) for name in verdict.bad_components},
        batch=batch,
        bad_gradients=tuple(culprits),
        norm_overflowed=overflowed,
        largest_gradient=attempt.largest_gradient() if overflowed else None,
        batch_absmax=_absmax(batches) if overflowed else None,
        state=_bad_state(health),
        bad_update=trouble == "update",
        settings=tuple(attempt.bad_settings),
        scale=scaling.after_overflow(verdict.scale) if trouble == "gradient" else verdict.scale,
        scale_floor=scaling.floor if scaling.on else None,
        spikes=tuple(SpikeFacts(name, s.value, s.typical) for name, s in jumps.items()),
        observed=tuple(summarize(name, tensor) for name, tensor in attempt.window.observed.items()),
        rank=verdict.bad_rank,
    )


def _absmax(batches: Any) -> float | None:
    largest = peak(tensor for _, tensor in tensors_in(batches))
    return float(largest) if largest is not None else None


def of_state(step: int, health: Health) -> FailedStep:
    """State that is bad between two steps: nothing is known of how it became so."""
    return FailedStep(step, "state", "parameter", reproduced=None, state=_bad_state(health))


def _bad_state(health: Health) -> tuple[StateTensor, ...]:
    return tuple(
        StateTensor(_OWNERS[kind], bad.name, bad.nan, bad.inf, math.prod(bad.shape), dtype=bad.dtype)
        for kind, bad in health.bad()
    )
