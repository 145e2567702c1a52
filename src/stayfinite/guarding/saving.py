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
from stayfinite.recover.rng import RngState
from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import StateCopy


def save(
    path: Path, state: TrainingState, health: Health, step: int, position: DataPosition, recovery: Recovery
) -> None:
    """Write everything a run needs to go on, or say what of it is not finite and write nothing."""
    payload = archive.pack(state, step, position.state_dict(), memory_of(recovery), position.rng())
    bad = health.bad_in(payload)
    if bad:
        raise CheckpointError(
            f"{path} was not written: {_listed(bad)}. A checkpoint that was there before is untouched."
        )
    checkpoint.write(path, payload)


def memory_of(recovery: Recovery) -> dict[str, Any]:
    """What the guard itself remembers."""
    return {"counters": recovery.ladder.counters.to_dict(), "plan": recovery.staging.state_dict()}


def remember(recovery: Recovery, memory: dict[str, Any]) -> None:
    """Go on counting where a saved run was; failures in a row were those of the run before."""
    recovery.ladder.begin_anew()
    recovery.ladder.counters.load(memory["counters"])
    recovery.staging.load_state_dict(memory.get("plan"))


def load(
    path: Path,
    state: TrainingState,
    health: Health,
    position: DataPosition,
    recovery: Recovery,
    resume_lr: str,
) -> tuple[int, str]:
    """Put a verified checkpoint into the live run, all of it or nothing.

    Gives its step, and a sentence on the learning rates of both.
    """
    if resume_lr not in ("checkpoint", "config"):
        raise ValueError(f"guard.restore(resume_lr={resume_lr!r}): choose 'checkpoint' or 'config'")
    payload: dict[str, Any] = checkpoint.read(path)
    bad = health.bad_in(payload)
    if bad:
        raise CheckpointError(f"{path} is not restored: {_listed(bad)}. Restore an older one.")
    present = _Present(state)
    try:
        memory, staging = payload["guard"], recovery.staging
        factor = factor_of(memory.get("plan")) / staging.factor if staging.stage is not None else 1.0
        configured, stored = archive.unpack(payload, state, resume_lr, factor)
        step, data = int(payload["step"]), payload["data"]
        rates = _rates_on_resume(path, configured, stored, resume_lr)
        position.load_state_dict(data)
        remember(recovery, memory)
    except BaseException as error:
        present.put_back()
        if isinstance(error, CheckpointError) or not isinstance(error, Exception):
            raise
        raise CheckpointError(
            f"{path} does not fit the present run ({type(error).__name__}: {error}). Build model, optimizer and "
            "scheduler as in the run that saved it; nothing was loaded."
        ) from error
    return step, rates


class _Present:
    """The run as it is before a checkpoint is loaded into it, so that a load that fails leaves no trace."""

    def __init__(self, state: TrainingState) -> None:
        self._copy, self._scaler, self._rng = StateCopy(state, device="cpu"), state.scaler, RngState.capture()
        self._copy.take()
        self._scale = self._scaler.state_dict() if self._scaler is not None else None

    def put_back(self) -> None:
        self._copy.restore()
        if self._scaler is not None and self._scale:
            self._scaler.load_state_dict(self._scale)
        self._rng.restore()


def save_numbered(folder: Path, step: int, keep: int, save_to: Any) -> Path:
    """Write step-N.pt and let the oldest go; the one just verified always stays."""
    path = checkpoint.step_path(folder, step)
    save_to(path)
    checkpoint.rotate(folder, keep, last_good=path)
    return path


def _listed(bad: list[str]) -> str:
    return bad[0] + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")


def _rates_on_resume(path: Path, configured: list[Rate], stored: list[Rate], resume_lr: str) -> str:
    if all(math.isclose(c.peak, s.peak, rel_tol=1e-12) for c, s in zip(configured, stored, strict=True)):
        return f"restored {path}; learning rate {', '.join(map(str, stored))}"
    return (
        f"restored {path}; the learning rates differ: the checkpoint has {', '.join(map(str, stored))}; "
        f"the present configuration has {', '.join(map(str, configured))}. "
        f"The {resume_lr}'s are used (resume_lr={resume_lr!r})"
    )
