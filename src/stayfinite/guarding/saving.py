"""Checkpoints of a guarded run: verified before they are written, and before they are loaded."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stayfinite.guarding.health import Health
from stayfinite.hooks.interrupts import interrupts_pass
from stayfinite.recover import CheckpointError, archive, checkpoint, sharded_checkpoint
from stayfinite.recover.plan import factor_of
from stayfinite.recover.position import DataPosition
from stayfinite.recover.ranks import Ranks, rank, world_size
from stayfinite.recover.rates import Rate
from stayfinite.recover.recovery import Recovery
from stayfinite.recover.rng import RngState
from stayfinite.recover.save_meeting import SaveMeeting
from stayfinite.recover.sharded_checkpoint import named_shards, without_shards
from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import StateCopy
from stayfinite.watch.finite import all_finite


def save(
    path: Path, state: TrainingState, health: Health, step: int, position: DataPosition, recovery: Recovery
) -> None:
    """Write everything a run needs to go on, or say what of it is not finite and write nothing."""
    _write_verified(path, RankContent(state, step, position, recovery).payload(), health)


@dataclass(frozen=True, slots=True)
class RankContent:
    """What one of several ranks has to save."""

    state: TrainingState
    step: int
    position: DataPosition
    recovery: Recovery

    def own(self) -> dict[str, Any]:
        """What each rank has of its own, though the weights are the same everywhere."""
        return {"rng": self.position.rng().to_saved(), "data": self.position.state_dict()}

    def payload(self) -> dict[str, Any]:
        return archive.pack(
            self.state, self.step, self.position.state_dict(), memory_of(self.recovery), self.position.rng()
        )


def save_replicas(
    path: Path,
    content: RankContent,
    health: Health,
    bad: list[str],
    meeting: SaveMeeting,
    *,
    equal: bool,
    all_must_come: bool,
) -> list[int]:
    """Rank 0 writes for all of them. Gives the ranks that did not come, where they need not.

    A rank that saves to a path of its own writes there. Ranks that are no replicas must each have one.
    """
    if not meeting.begin(path):
        _write_alone(path, content, health, bad)
        return []
    if rank() > 0:
        meeting.bring({**content.own(), "bad": bad, "equal": equal})
        problem = meeting.word()
        if problem:
            raise CheckpointError(problem)
        return []
    problem = "rank 0 broke off"
    try:
        others = meeting.collect()
        # it has died: without its random numbers nobody can go on as it would
        if meeting.absent and all_must_come:
            raise CheckpointError(f"{path} was not written: rank {meeting.absent[0]} did not come.")
        if others and not equal:
            raise CheckpointError(
                f"{path} was not written: the ranks hold different weights, and one file would hold those of rank 0. "
                "Give guard.save another path on every rank."
            )
        problems = [bad, *(other["bad"] for other in others.values())]
        for number, found in enumerate(problems):
            if found:
                raise CheckpointError(
                    f"{path} was not written: on rank {number} {_listed(found)} is not finite. A checkpoint that was "
                    "there before is untouched."
                )
        own = {number: {key: other[key] for key in ("rng", "data")} for number, other in others.items()}
        _write_verified(path, {**content.payload(), "ranks": own}, health)
        problem = ""
    except CheckpointError as error:
        problem = str(error)
        raise
    finally:
        meeting.say(problem)
    return meeting.absent


def _write_alone(path: Path, content: RankContent, health: Health, bad: list[str]) -> None:
    if bad:
        raise CheckpointError(f"{path} was not written: {_listed(bad)} is not finite.")
    _write_verified(path, content.payload(), health)


def _write_verified(path: Path, payload: dict[str, Any], health: Health) -> None:
    bad = health.bad_in(payload)
    if bad:
        raise CheckpointError(
            f"{path} was not written: {_listed(bad)}. A checkpoint that was there before is untouched."
        )
    checkpoint.write(path, payload)


def save_shards(path: Path, content: RankContent, bad: list[str], ranks: Ranks) -> None:
    """All ranks write their shards into one folder, or none."""
    names = ranks.union(bad)
    if names:
        raise CheckpointError(f"{path} was not written: {_listed(names)} is not finite.")
    written = io.BytesIO()
    torch.save(content.own(), written)
    own = [torch.load(io.BytesIO(text), weights_only=True) for text in ranks.texts(written.getvalue())]
    payload = {**content.payload(), "ranks": {str(number): each for number, each in enumerate(own) if number}}
    sharded_checkpoint.write(path, payload, ranks)


def memory_of(recovery: Recovery) -> dict[str, Any]:
    """What the guard itself remembers."""
    ladder = recovery.ladder
    return {
        "counters": ladder.counters.to_dict(),
        "lowered": ladder.lowered,
        "plan": recovery.staging.state_dict(),
    }


def remember(recovery: Recovery, memory: dict[str, Any]) -> None:
    """Go on counting where a saved run was; failures in a row were those of the run before."""
    recovery.ladder.begin_anew()
    recovery.ladder.counters.load(memory["counters"])
    recovery.ladder.lowered = float(memory.get("lowered", recovery.ladder.counters.lowerings))
    recovery.staging.load_state_dict(memory.get("plan"))


def load(
    path: Path,
    state: TrainingState,
    health: Health,
    position: DataPosition,
    recovery: Recovery,
    resume_lr: str,
    ranks: Ranks,
) -> tuple[int, str]:
    """Put a verified checkpoint into the live run, all of it or nothing.

    Gives its step, and a sentence on the learning rates of both.
    """
    if resume_lr not in ("checkpoint", "config"):
        raise ValueError(f"guard.restore(resume_lr={resume_lr!r}): choose 'checkpoint' or 'config'")
    with interrupts_pass():  # nothing is loaded yet
        if sharded_checkpoint.is_sharded_checkpoint(path):
            payload = sharded_checkpoint.read(path, state, ranks)
            bad = ranks.union([*health.bad_in(without_shards(payload)), *_bad_shards(payload)])
        else:
            payload = checkpoint.read(path)
            bad = health.bad_in(payload)
    if bad:
        raise CheckpointError(f"{path} is not restored: {_listed(bad)}. Restore an older one.")
    remark = _take_own(payload)
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
    return step, rates + remark


def _take_own(payload: dict[str, Any]) -> str:
    """This rank's own random states and position; gives a remark where the file has none."""
    own = payload.get("ranks", {}).get(str(rank()))
    if own is not None:
        payload.update(own)
    elif rank() > 0 and world_size() > 1:
        return f"; it has no random states of rank {rank()}: those of rank 0 are used"
    return ""


def _bad_shards(payload: dict[str, Any]) -> list[str]:
    shards = [(key, tensor) for key, tensor in named_shards(payload) if tensor.is_floating_point()]
    return [f"{key} holds NaN or Inf" for key, tensor in shards if not all_finite([tensor])]


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
