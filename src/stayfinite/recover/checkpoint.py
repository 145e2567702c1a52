"""Checkpoint files: written atomically, checked before use, rotated without ever losing the last good one.

The file is what `torch.save` writes: a zip whose members carry a CRC32 each. `read` checks all of them and
never executes a pickle.
"""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

FORMAT = 1
_STEP = re.compile(r"step-(\d+)\.pt$")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or must not be read; the message says what to do."""


def write(path: Path, payload: dict[str, Any]) -> None:
    """Write `payload` to `path` so that a crash at any moment leaves the old file or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:  # noqa: PTH123 - torch.save and fsync want the file object
            torch.save(payload, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"could not write the checkpoint {path}: {_reason(error)}. "
            "Free space or choose a writable directory; files that were there before are untouched."
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: Path) -> dict[str, Any]:
    """The payload of a file that `write` made, after its checksums have been verified."""
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError) as error:
        raise CheckpointError(
            f"{path} is not a whole checkpoint ({error}): it was cut short or is another kind of file. "
            "Restore an older one."
        ) from error
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged: the checksum of {damaged} does not match. Restore an older one."
        )
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(
            f"{path} was refused: it holds objects that only run when unpickled ({error}). "
            "stayfinite reads only what guard.save wrote."
        ) from error
    if not isinstance(payload, dict) or payload.get("stayfinite") != FORMAT:
        raise CheckpointError(
            f"{path} was not written by guard.save (no stayfinite header of version {FORMAT}); "
            "load it with torch.load and your own code."
        )
    return payload


def step_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08d}.pt"


def numbered(directory: Path) -> list[Path]:
    """The step-N.pt files of a directory, oldest first."""
    found = [
        (int(match[1]), path) for path in directory.glob("step-*.pt") if (match := _STEP.search(path.name))
    ]
    return [path for _, path in sorted(found)]


def rotate(directory: Path, keep: int, last_good: Path | None) -> list[Path]:
    """Delete all but the newest `keep` numbered checkpoints; never the last one that was verified good."""
    doomed = [path for path in numbered(directory)[:-keep] if path != last_good] if keep > 0 else []
    for path in doomed:
        path.unlink(missing_ok=True)
    return doomed


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable. Not every platform can open a directory; there it is not needed."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: BaseException) -> str:
    """torch wraps a full disk in a RuntimeError about its zip writer; the OSError beneath says it plainly."""
    cause = error
    while not isinstance(cause, OSError) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    return cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error).splitlines()[0]
