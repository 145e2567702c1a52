"""The last tier: the script once more in a fresh process, traced, until the failure is located."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stayfinite.findings import Incident
from stayfinite.launch.options import Options

STATE_VARIABLE = "STAYFINITE_SECOND_RUN_STATE"
_SLOWDOWN, _AT_LEAST = 15.0, 120.0  # a traced step costs several plain ones


class Beginning:
    """The random numbers as they were before the script began, so that a second run draws the same."""

    def __init__(self) -> None:
        self.python = random.getstate()
        self.numpy = _numpy_random().get_state() if _numpy_random() is not None else None
        self.started = time.monotonic()

    def save(self, path: Path) -> None:
        path.write_bytes(pickle.dumps((self.python, self.numpy)))

    @staticmethod
    def restore_from_environment() -> None:
        """In the second run: begin with the random numbers of the first."""
        path = os.environ.pop(STATE_VARIABLE, None)
        if path is None:
            return
        python, numpy = pickle.loads(Path(path).read_bytes())
        random.setstate(python)
        if numpy is not None and _numpy_random() is not None:
            _numpy_random().set_state(numpy)


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


def run_again(options: Options, beginning: Beginning, failing_step: int) -> list[Incident]:
    """Run the script again under the tracer; its output is thrown away. [] when it did not fail again."""
    with tempfile.TemporaryDirectory(prefix="stayfinite-") as folder:
        state, output = Path(folder, "random"), Path(folder, "incidents.json")
        beginning.save(state)
        command = [sys.executable, "-m", "stayfinite", "run", "--trace", "always", "--format", "json"]
        command += ["--output", str(output), "--stop-after-step", str(failing_step + 1)]
        command += ["--max-incidents", str(options.max_incidents)]
        command += [*(["-m"] if options.module else []), options.target, *options.arguments]
        took = time.monotonic() - beginning.started
        try:
            subprocess.run(
                command,
                env={**os.environ, STATE_VARIABLE: str(state)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=max(_AT_LEAST, _SLOWDOWN * took),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return []
        if not output.exists():
            return []
        data = json.loads(output.read_text(encoding="utf-8"))
        return [Incident.from_json(item) for item in data["incidents"]]
