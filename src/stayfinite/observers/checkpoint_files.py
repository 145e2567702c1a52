"""Observes torch.load: which files were read, and of those that could not be, whether the file itself is damaged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

from stayfinite.findings.subjects.run_record import FileLoad, Place
from stayfinite.observers.history import RunHistory, here
from stayfinite.observers.ownership import Hear
from stayfinite.replay.tracer import unfollowed

_KEPT = 64
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class CheckpointFileObserver:
    """All calls of torch.load."""

    def __init__(self, history: RunHistory, on_read: Callable[[Any, Place], None]) -> None:
        self._history, self._on_read = history, on_read
        self.loads: list[FileLoad] = []
        self._errors: set[tuple[int, str]] = set()

    def install(self, hear: Hear) -> None:
        hear("file_load", self._loading)

    def raised(self, error: BaseException) -> bool:
        """This error came from a file that is no whole checkpoint."""
        return (id(error), str(error)) in self._errors

    def _loading(self, original: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        place = here()
        try:
            result = original(file, *args, **kwargs)
        except _NO_FILE:
            raise
        except Exception as error:
            with unfollowed():
                damage = _damage(file)
            if damage is not None:
                self._errors.add((id(error), str(error)))
                self._note(FileLoad(place, _name(file), self._history.step, damage))
            raise
        self._note(FileLoad(place, _name(file), self._history.step))
        self._on_read(result, place)
        return result

    def _note(self, load: FileLoad) -> None:
        self.loads.append(load)
        del self.loads[:-_KEPT]


def _name(file: Any) -> str:
    """The path, or the name that an open file gives itself."""
    if isinstance(file, (str, os.PathLike)):
        return str(os.fspath(file))
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else type(file).__name__


def _damage(file: Any) -> str | None:
    """Why the file is no whole checkpoint; None when it is one, and something else was wrong with the load."""
    if isinstance(file, (str, os.PathLike)):
        return _damage_at(str(os.fspath(file)))
    if not all(hasattr(file, method) for method in ("seek", "tell", "read")):
        return None
    try:
        at = file.tell()
        file.seek(0)
        data = file.read()
        file.seek(at)
    except (OSError, ValueError):  # closed, or a stream that cannot go back
        return None
    with tempfile.NamedTemporaryFile(delete=False) as copy:
        copy.write(data)
    try:
        found = _damage_at(copy.name)
    finally:
        os.unlink(copy.name)  # noqa: PTH108
    return found.replace(copy.name, _name(file)) if found is not None else None


def _damage_at(path: str) -> str | None:
    from stayfinite.readers.checkpoint import Unreadable, read_file  # only when a file could not be read

    try:
        problems = read_file(path).problems
    except Unreadable as trouble:
        return str(trouble)
    except OSError:  # it is gone: nothing can be said about it
        return None
    return next((problem.message for problem in problems if problem.what in ("damaged", "oversized")), None)
