"""What ranks say of the tasks they are given: one set of processes for all tasks, and a hang is an error.

torch 2.6 cannot shard on the CPU: tests that ask for the report of such a task are skipped there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import preloaded

CAN_SHARD = hasattr(torch.cpu.Stream, "record_event")
_PATIENCE = 240


class Reports(dict[str, list[dict[str, Any]]]):
    """What every rank says, by the task it was given."""

    def __missing__(self, task: str) -> NoReturn:
        if task.startswith("shard") and not CAN_SHARD:
            pytest.skip(f"torch {torch.__version__} cannot shard on the CPU")
        raise KeyError(task)


def runnable(tasks: Iterable[str]) -> list[str]:
    return [task for task in tasks if CAN_SHARD or not task.startswith("shard")]


def reports_of(script: Path, given: Sequence[Sequence[object]], tasks: Iterable[str]) -> Reports:
    """Start the script once a rank, with what that rank is `given` before the tasks; each prints a line a task."""
    tasks = runnable(tasks)
    places = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}  # a script may take parts of another
    children = [
        preloaded.start([sys.executable, str(script), *map(str, own), *tasks], env=environment)
        for own in given
    ]
    ended = []
    for child in children:
        try:
            ended.append(child.communicate(timeout=_PATIENCE))
        except subprocess.TimeoutExpired:
            child.kill()
            ended.append((child.communicate()[0], "it waited for the other ranks for ever"))
    said = [[json.loads(line) for line in output.splitlines()] for output, _ in ended]
    whole = all(len(lines) == len(tasks) for lines in said) and not any(c.returncode for c in children)
    assert whole, [errors[-2000:] for _, errors in ended]
    return Reports({task: [lines[number] for lines in said] for number, task in enumerate(tasks)})
