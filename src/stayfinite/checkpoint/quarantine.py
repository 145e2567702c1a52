"""Moves bad checkpoints out of the way, so that nothing resumes from them. Never the last good one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from stayfinite.checkpoint.verify import CheckpointVerdict
from stayfinite.readers.checkpoint import Unreadable
from stayfinite.readers.checkpoint.files import is_url

_COMPANIONS = (
    ".json", ".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".distcp", ".metadata", ".model", ".npz",
    ".npy",
)  # fmt: skip
_COMPANION_NAMES = (".metadata", "latest", "zero_to_fp32.py", "vocab.txt", "merges.txt", "README.md", ".gitattributes",
                    "fingerprint.pb")  # fmt: skip


def to_move(verdicts: Sequence[CheckpointVerdict]) -> list[CheckpointVerdict]:
    """The bad ones. A healthy checkpoint is never moved, so the last good one stays."""
    return [verdict for verdict in verdicts if not verdict.healthy]


def paths_of(verdict: CheckpointVerdict, everyone: Sequence[CheckpointVerdict]) -> list[Path]:
    """What to move: the whole folder if nothing but the checkpoint is in it, else the checkpoint's own files."""
    place = Path(verdict.checkpoint.path)
    others = [Path(other.checkpoint.path) for other in everyone if other is not verdict and other.healthy]
    files = verdict.location.files if verdict.location is not None else (verdict.checkpoint.path,)
    own = [Path(file) for file in files]
    if place.is_dir() and not any(place in other.parents for other in others) and _holds_only(place, own):
        return [place]
    return own


def _holds_only(folder: Path, own: Sequence[Path]) -> bool:
    """Nothing in the folder but the checkpoint and what is saved beside one. Never the folder one works in."""
    if Path.cwd().is_relative_to(folder.resolve()):
        return False
    mine = {path.resolve() for path in own}
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return all(
        path.resolve() in mine or path.suffix in _COMPANIONS or path.name in _COMPANION_NAMES
        for path in files
    )


def refusal(verdicts: Sequence[CheckpointVerdict], folder: Path) -> str | None:
    """Why nothing can be moved to `folder`, or None."""
    if os.path.lexists(folder) and not folder.is_dir():
        return f"{folder} is a file; name a folder for the bad checkpoints"
    for verdict in to_move(verdicts):
        for source in paths_of(verdict, verdicts):
            if source.resolve() == folder.resolve() or source.resolve() in folder.resolve().parents:
                return f"{folder} lies inside {source}, which would be moved; name another folder"
            if source.resolve().parent == folder.resolve():
                return f"{source} is in {folder} already; name another folder"
    return None


def quarantine(verdict: CheckpointVerdict, everyone: Sequence[CheckpointVerdict], folder: Path) -> list[Path]:
    """Move one bad checkpoint into `folder`; gives the new places. Nothing there is overwritten."""
    if verdict.healthy:
        raise ValueError(f"{verdict.checkpoint.path} is healthy and stays where it is")
    if is_url(verdict.checkpoint.path):
        raise Unreadable(f"{verdict.checkpoint.path}: only local checkpoints can be moved")
    reason = refusal([verdict], folder)
    if reason is not None:
        raise Unreadable(reason)
    folder.mkdir(parents=True, exist_ok=True)
    moved: list[Path] = []
    for source in paths_of(verdict, everyone):
        target = folder / source.name
        number = 1
        while os.path.lexists(target):
            target = folder / f"{source.name}.{number}"
            number += 1
        shutil.move(source, target)
        moved.append(target)
    return moved
