"""Checkpoints of a guarded run: verified before they are written, and before they are loaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from stayfinite.guarding.health import Health
from stayfinite.recover import CheckpointError, archive, checkpoint
from stayfinite.recover.plan import factor_of
from stayfinite.recover.position import DataPosition
from stayfinite.recover.rates import Rate
from stayfinite.recover.recovery import Recovery
from stayfinite.recover.state import TrainingState


def save(
    path: Path, state: TrainingState, health: Health, step: int, position: DataPosition, recovery: Recovery
) -> None:
    """Write everything a run needs to go on, or say what of it is not finite and write nothing."""
    memory = {"counters": recovery.ladder.counters.to_dict(), "plan": recovery.staging.state_dict()}
    payload = archive.pack(state, step, position.state_dict(), memory)
    bad = health.bad_in(payload)
    if bad:
        raise CheckpointError(
            f"{path} was not written: {bad[0].name} holds {bad[0].nan} NaN and {bad[0].inf} Inf"
            f"{_and_more(len(bad))}. A checkpoint that was there before is untouched."
        )
    checkpoint.write(path, payload)


def load(
    path: Path,
    state: TrainingState,
    health: Health,
    position: DataPosition,
    recovery: Recovery,
    resume_lr: str,
) -> tuple[int, str]:
    """Put a verified checkpoint into the live run; gives its step, and a sentence on the rates of both."""
    if resume_lr not in ("checkpoint", "config"):
        raise ValueError(f"guard.restore(resume_lr={resume_lr!r}): choose 'checkpoint' or 'config'")
    payload: dict[str, Any] = checkpoint.read(path)
    bad = health.bad_in(payload)
    if bad:
        raise CheckpointError(
            f"{path} is not restored: {bad[0].name} holds {bad[0].nan} NaN and {bad[0].inf} Inf"
            f"{_and_more(len(bad))}. Restore an older one."
        )
    memory, staging = payload["guard"], recovery.staging
    stage = memory.get("plan")
    factor = factor_of(stage) / staging.factor if staging.stage is not None else 1.0
    configured, stored = archive.unpack(payload, state, resume_lr, factor)
    position.load_state_dict(payload["data"])
    recovery.ladder.counters.load(memory["counters"])
    staging.load_state_dict(stage)
    return payload["step"], _rates_on_resume(path, configured, stored, resume_lr)


def save_numbered(folder: Path, step: int, keep: int, save_to: Any) -> Path:
    """Write step-N.pt and let the oldest go; the one just verified always stays."""
    path = checkpoint.step_path(folder, step)
    save_to(path)
    checkpoint.rotate(folder, keep, last_good=path)
    return path


def _and_more(count: int) -> str:
    return f" (and {count - 1} more tensors)" if count > 1 else ""


def _rates_on_resume(path: Path, configured: list[Rate], stored: list[Rate], resume_lr: str) -> str:
    if all(math.isclose(c.peak, s.peak, rel_tol=1e-12) for c, s in zip(configured, stored, strict=True)):
        return f"restored {path}; learning rate {', '.join(map(str, stored))}"
    return (
        f"restored {path}; the learning rates differ: the checkpoint has {', '.join(map(str, stored))}; "
        f"the present configuration has {', '.join(map(str, configured))}. "
        f"The {resume_lr}'s are used (resume_lr={resume_lr!r})"
    )
