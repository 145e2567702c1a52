"""SaveKill: inside the drilled process, has the kernel end it in the middle of writing a checkpoint.

A limit on the size of files is set to half of what the checkpoint takes; the write that goes beyond it ends the process
at once, whoever writes: python, compiled code, or a library.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stayfinite.hooks import listen
from stayfinite.launch.drill.journal import Journal

_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar", ".tmp", ".pkl")


class SaveKill:
    """Lets the saves before number `at` pass and tells of them; kills in the middle of that one."""

    def __init__(self, at: int, journal: Journal) -> None:
        self._at, self._journal = at, journal
        self._saves = 0
        self._inside = False
        self._limited = False
        self._buffered = False  # the bytes of the last save are in memory: any file may take them
        self._unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.updates = 0

    def install(self) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # python ignores it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.addaudithook(self._audited)
        register_optimizer_step_pre_hook(self._updating)
        listen("file_save", self._torch_save)
        listen("safetensors_save", self._save)

    def _updating(self, *_: Any) -> None:
        self.updates += 1
        self._buffered = False
        if self._limited:  # the save is over, and no file grew to its half
            self._lift()
            self._journal.write(passed=self._saves)

    def _torch_save(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return original(obj, f, *args, **kwargs)
        size = None
        if self._saves + 1 >= self._at and not self._limited:
            counting = _Size()
            self._inside = True
            original(obj, counting, *args, **kwargs)
            self._inside = False
            size = counting.size
        return self._save(lambda: original(obj, f, *args, **kwargs), None, f, size=size)

    def _save(
        self, original: Any, tensors: Any, f: Any, *args: Any, size: int | None = None, **kwargs: Any
    ) -> Any:
        self._saves += 1
        name = f if isinstance(f, (str, os.PathLike)) else getattr(f, "name", None)
        path = str(Path(os.fspath(name)).absolute()) if isinstance(name, (str, os.PathLike)) else None
        self._buffered = path is None
        self._journal.write(save=self._saves, path=path, updates=self.updates)
        if self._saves >= self._at and not self._limited:
            if size is None:
                size = sum(t.nbytes for t in tensors.values() if isinstance(t, torch.Tensor))
            self._limit(size // 2)
        result = original() if tensors is None else original(tensors, f, *args, **kwargs)
        if self._limited and path is not None:
            self._lift()
            self._journal.write(passed=self._saves)
        return result

    def _limit(self, size: int) -> None:
        self._journal.write(killing=self._saves, at=size)
        self._limited = True
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(1, size), self._unlimited[1]))

    def _lift(self) -> None:
        self._limited = False
        resource.setrlimit(resource.RLIMIT_FSIZE, self._unlimited)

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Renames, and files that python itself writes a checkpoint to."""
        if not self._saves or event not in ("os.rename", "open"):
            return
        if event == "os.rename":
            source, target = arguments[0], arguments[1]
            if isinstance(source, (str, os.PathLike)) and isinstance(target, (str, os.PathLike)):
                self._journal.write(
                    rename=[str(Path(source).absolute()), str(Path(target).absolute())], save=self._saves
                )
            return
        path, mode = arguments[0], arguments[1]
        writes = isinstance(mode, str) and any(letter in mode for letter in "wx+a")
        if not writes or not isinstance(path, (str, os.PathLike)):
            return
        if self._buffered or Path(path).suffix in _CHECKPOINTS:
            self._journal.write(opened=str(Path(path).absolute()), save=self._saves)

    def ended(self, code: int) -> None:
        """The script came to its end by itself."""
        self._lift()
        self._journal.write(ended=code, updates=self.updates)


class _Size:
    """A file that only counts."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, content: Any) -> int:
        self.size += len(content)
        return len(content)

    def flush(self) -> None:
        """Nothing is kept."""
