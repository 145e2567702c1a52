"""Checkpoint files: written atomically, checked before use, rotated without ever losing the last good one.

The file is what `torch.save` writes: a zip whose members carry a CRC32 each. `read` checks all of them and
never executes a pickle.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
            with _with_checksums():
                torch.save(payload, file)
            file.flush()
            os.fsync(file.fileno())
        _require_plain(path, temporary)
        temporary.replace(path)
        sync_directory(path.parent)
    except CheckpointError:
        raise
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"could not write the checkpoint {path}: {_reason(error)}. "
            "Free space or choose a writable directory; files that were there before are untouched."
        ) from error
    finally:
        # after a success it is gone already; under a file that is no folder it never was
        with suppress(OSError):
            temporary.unlink()


def read(path: Path) -> dict[str, Any]:
    """The payload of a file that `write` made, after its checksums have been verified."""
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
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
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} was refused: it holds {_foreign(error)}, which could run code when unpickled. "
            "stayfinite reads only what guard.save wrote."
        ) from error
    except (RuntimeError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{path} is a zip but no checkpoint that can be read ({str(error).splitlines()[0]}). "
            "Restore one that guard.save wrote."
        ) from error
    if not isinstance(payload, dict) or payload.get("stayfinite") != FORMAT:
        raise CheckpointError(
            f"{path} was not written by guard.save (no stayfinite header of version {FORMAT}); "
            "load it with torch.load and your own code."
        )
    return payload


def _require_plain(path: Path, written: Path) -> None:
    """A file that `read` would refuse is worth nothing: find that out now. Only the structure is read, no numbers."""
    try:
        torch.load(written, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} was not written: the state holds {_foreign(error)}, which cannot be read back without running "
            "a pickle. Keep tensors and plain Python values in the state of model, optimizer and scheduler "
            "(get_extra_state, param_groups, state_dict)."
        ) from error


def _foreign(error: pickle.UnpicklingError) -> str:
    """The name of the object torch refused, out of its long message."""
    named = re.search(r"GLOBAL ([\w.]+)|[Uu]nsupported class ([\w.]+)", str(error))
    return (named[1] or named[2]) if named else "objects that are no plain data"


@contextmanager
def _with_checksums() -> Iterator[None]:
    """`read` needs the CRC32 of every member, even where the user has told torch.save to leave it out."""
    # torch >= 2.6; before, it is always computed
    get = getattr(torch.serialization, "get_crc32_options", None)
    if get is None or get():
        yield
        return
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(False)


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
        if path.is_dir():  # of sharded state
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return doomed


def sync_directory(directory: Path) -> None:
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
