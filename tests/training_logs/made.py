"""Logs out of lists of numbers, through the same digest that files go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stayfinite.findings.subjects.log import Log
from stayfinite.logs.digest import Digest
from stayfinite.logs.examine import judge
from stayfinite.readers.log import Block, Column


def log_of(
    columns: Mapping[str, Sequence[float]],
    steps: Sequence[float] | None = None,
    chunk: int = 97,
    counted: bool = True,
) -> Log:
    """In chunks that do not line up with anything."""
    count = len(next(iter(columns.values())))
    numbered = list(steps) if steps is not None else list(range(count))
    digest = Digest("made.jsonl", "made")
    for begin in range(0, count, chunk):
        end = min(begin + chunk, count)
        digest.update(
            Block(
                range(begin + 1, end + 1),
                numbered[begin:end] if counted else (),
                {name: _column(values[begin:end]) for name, values in columns.items()},
            )
        )
    return digest.log


def _column(values: Sequence[float]) -> Column:
    return Column(range(len(values)), list(values))


def codes(
    columns: Mapping[str, Sequence[float]], steps: Sequence[float] | None = None, **more: int
) -> list[str]:
    return [finding.code for finding in judge(log_of(columns, steps, **more)).findings]
