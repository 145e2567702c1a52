"""Beginning: the world before the script, so that a second run finds the same."""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stayfinite.launch import sleeping_threads
from stayfinite.launch.file_changes import FileChanges
from stayfinite.sandbox.hash_seed import seed_of_this_run, with_seed

VARIABLE = "STAYFINITE_SECOND_RUN"


class Beginning:
    """Random numbers, threads, environment, folder and files as they were before the script began."""

    def __init__(self) -> None:
        self.python = random.getstate()
        self.numpy = _numpy_random().get_state() if _numpy_random() is not None else None
        self.threads = torch.get_num_threads()
        self.environment = dict(os.environ)
        self.folder = os.getcwd()  # noqa: PTH109 - as it is spelled, whatever links are in it
        self.files = FileChanges()
        self.hash_seed = seed_of_this_run()
        self.ranks = 1
        """Of the training. A script may clear the variables of its launcher away, as Lightning does."""

    def watch_files(self, target: str, arguments: Sequence[str]) -> None:
        """Note from now on what happens to files: here, beside the script, and in folders it is given."""
        given = [argument.rpartition("=")[2] for argument in arguments]
        folders = [name for name in given if name and Path(name).is_dir()]
        beside = str(Path(target).parent) if Path(target).is_file() else self.folder
        self.files.start([self.folder, beside, *folders])

    def again(self, state: Path) -> dict[str, str]:
        """The environment of a process that runs the script again, and finds there what `save` has written."""
        environment = sleeping_threads.with_sleeping_threads(with_seed(self.environment, self.hash_seed))
        return {**environment, VARIABLE: str(state)}

    def save(self, path: Path, **more: Any) -> None:
        """For a second run; `more` is what it is to do."""
        state = {"python": self.python, "numpy": self.numpy, "threads": self.threads, **more}
        path.write_bytes(pickle.dumps(state))


def restore() -> dict[str, Any] | None:
    """In a second run: begin with the random numbers and threads of the first. Gives what it is to do."""
    path = os.environ.pop(VARIABLE, None)
    if path is None:
        return None
    sleeping_threads.forget()
    state: dict[str, Any] = pickle.loads(Path(path).read_bytes())
    random.setstate(state.pop("python"))
    threads, numpy = state.pop("threads"), state.pop("numpy")
    if threads != torch.get_num_threads():  # sums are split by threads, and rounded accordingly
        torch.set_num_threads(threads)
    if numpy is not None and _numpy_random() is not None:
        _numpy_random().set_state(numpy)
    return state


def _numpy_random() -> Any:
    numpy = sys.modules.get("numpy")
    return getattr(numpy, "random", None)
