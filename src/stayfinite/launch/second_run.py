"""The last tier: the script once more in a fresh process, traced, until the failure is located."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from stayfinite.findings import Incident
from stayfinite.launch.options import Options
from stayfinite.launch.scratch_files import MadeFiles

STATE_VARIABLE = "STAYFINITE_SECOND_RUN_STATE"
_SLOWDOWN, _AT_LEAST = 15.0, 120.0  # a traced step costs several plain ones
_SHORT = 20.0  # seconds to the failure: so much may be traced from its beginning
_STEPS_BEFORE = 2


class Beginning:
    """Random numbers, threads and files as they were before the script began: a second run shall find the same."""

    def __init__(self) -> None:
        self.python = random.getstate()
        self.numpy = _numpy_random().get_state() if _numpy_random() is not None else None
        self.threads = torch.get_num_threads()
        self.made = MadeFiles()

    def save(self, path: Path) -> None:
        path.write_bytes(pickle.dumps((self.python, self.numpy, self.threads, self.made.paths)))

    @staticmethod
    def restore_from_environment() -> set[str]:
        """In the second run: begin with the random numbers and threads of the first; returns the files it made."""
        path = os.environ.pop(STATE_VARIABLE, None)
        if path is None:
            return set()
        python, numpy, threads, made = pickle.loads(Path(path).read_bytes())
        random.setstate(python)
        if threads != torch.get_num_threads():  # sums are split by threads, and rounded accordingly
            torch.set_num_threads(threads)
        if numpy is not None and _numpy_random() is not None:
            _numpy_random().set_state(numpy)
        return set(made)


def _numpy_random() -> Any:
    numpy = sys.modules.get("numpy")
    return getattr(numpy, "random", None)


def possible() -> str | None:
    """Why a second run cannot be made, or None."""
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        return "the script runs on several ranks"
    if STATE_VARIABLE in os.environ:
        return "this is the second run"
    return None


def run_again(options: Options, beginning: Beginning, failing_step: int, seconds: float) -> list[Incident]:
    """Run the script again under the tracer; its output is thrown away. [] when it did not fail again.

    A run that failed early is traced from its first op. One that took long is traced from shortly before the
    failing step, and from the first op only if the bad value turns out to be older than that.
    """
    first = failing_step - _STEPS_BEFORE if seconds > _SHORT else 0
    found = _run(options, beginning, failing_step, max(0, first), seconds)
    if first > 0 and any(_came_from_before(incident) for incident in found):
        found = _run(options, beginning, failing_step, 0, seconds) or found
    return found


def _came_from_before(incident: Incident) -> bool:
    """The bad value was in the weights already when tracing began."""
    return incident.birth is not None and incident.birth.op in ("parameter", "buffer", "state", "outside")


def _run(
    options: Options, beginning: Beginning, failing_step: int, first: int, seconds: float
) -> list[Incident]:
    with tempfile.TemporaryDirectory(prefix="stayfinite-") as folder:
        state, output = Path(folder, "random"), Path(folder, "incidents.json")
        beginning.save(state)
        command = ["run", "--trace", "always", "--format", "json"]
        command += ["--output", str(output), "--stop-after-step", str(failing_step + 1)]
        command += ["--scratch", str(Path(folder, "scratch"))]
        command += ["--trace-from-step", str(first)] if first else []
        command += ["--max-incidents", str(options.max_incidents)]
        command += [*(["-m"] if options.module else []), options.target, *options.arguments]
        in_fresh_process(command, {STATE_VARIABLE: str(state)}, max(_AT_LEAST, _SLOWDOWN * seconds))
        if not output.exists():
            return []
        data = json.loads(output.read_text(encoding="utf-8"))
        return [Incident.from_json(item) for item in data["incidents"]]


def in_fresh_process(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> None:
    """`stayfinite` with this command, for so long at most; silent, for the script has said everything once."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "stayfinite", *command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
