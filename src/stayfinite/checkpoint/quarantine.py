"""Moves bad checkpoints out of the way, so that nothing resumes from them. Never the last good one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from stayfinite.checkpoint.verify import Verdict
from stayfinite.readers.checkpoint import Unreadable
from stayfinite.readers.checkpoint.files import is_url


def to_move(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The bad ones. A healthy checkpoint is never moved, so the last good one stays."""
    return [verdict for verdict in verdicts if not verdict.healthy]


def paths_of(verdict: Verdict, everyone: Sequence[Verdict]) -> list[Path]:
    """What to move: the whole folder, unless a checkpoint that stays lies inside it; then its own files."""
    place = Path(verdict.checkpoint.path)
    others = [Path(other.checkpoint.path) for other in everyone if other is not verdict and other.healthy]
    if place.is_dir() and not any(place in other.parents for other in others):
        return [place]
    files = verdict.location.files if verdict.location is not None else (verdict.checkpoint.path,)
    return [Path(file) for file in files]


def quarantine(verdict: Verdict, everyone: Sequence[Verdict], folder: Path) -> list[Path]:
    """Move one bad checkpoint into `folder`; gives the new places. Nothing there is overwritten."""
    if verdict.healthy:
        raise ValueError(f"{verdict.checkpoint.path} is healthy and stays where it is")
    if is_url(verdict.checkpoint.path):
        raise Unreadable(f"{verdict.checkpoint.path}: only local checkpoints can be moved")
    folder.mkdir(parents=True, exist_ok=True)
    moved: list[Path] = []
    for source in paths_of(verdict, everyone):
        target = folder / source.name
        number = 1
        while target.exists():
            target = folder / f"{source.name}.{number}"
            number += 1
        shutil.move(source, target)
        moved.append(target)
    return moved
