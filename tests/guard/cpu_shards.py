"""Reports of ranks by task. torch 2.6 cannot shard on the CPU: tests that ask for such a report are skipped there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import pytest
import torch

CAN_SHARD = hasattr(torch.cpu.Stream, "record_event")


class Reports(dict[str, list[dict[str, Any]]]):
    """What every rank says, by the task it was given."""

    def __missing__(self, task: str) -> NoReturn:
        if task.startswith("shard") and not CAN_SHARD:
            pytest.skip(f"torch {torch.__version__} cannot shard on the CPU")
        raise KeyError(task)


def runnable(tasks: Iterable[str]) -> list[str]:
    return [task for task in tasks if CAN_SHARD or not task.startswith("shard")]
