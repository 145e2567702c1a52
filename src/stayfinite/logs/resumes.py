"""Losses and learning rates on both sides of a resume, collected while the log goes by."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from stayfinite.findings.subjects.log import Point, Resume
from stayfinite.logs.chunk import Chunk

_AROUND = 16
_MOST = 100


@dataclass(frozen=True, slots=True)
class Side:
    """One series at this block: its chunk, and its last values, those of the chunk included."""

    name: str
    chunk: Chunk | None
    tail: list[float]

    def before(self, row: int) -> list[float]:
        """The values in front of a row."""
        if self.chunk is None:
            return self.tail[-_AROUND:]
        index = bisect_left(self.chunk.rows, row)
        here = self.chunk.values[max(0, index - _AROUND) : index]
        if len(here) < _AROUND:
            earlier = self.tail[: -len(self.chunk)] if len(self.chunk) < len(self.tail) else []
            here = (earlier + here)[-_AROUND:]
        return here

    def after(self, row: int) -> list[float]:
        """The values from a row on."""
        if self.chunk is None:
            return []
        index = bisect_left(self.chunk.rows, row)
        return self.chunk.values[index : index + _AROUND]


class ResumeFollower:
    """Knows the resumes so far; the last of them may still be collecting what came after it."""

    def __init__(self) -> None:
        self.found: list[Resume] = []

    def update(self, points: Sequence[Point], loss: Side | None, rate: Side | None, first: int) -> None:
        """Take the resumes of a block whose first row is record `first`."""
        if self.found and self.found[-1].point.order < first:
            _fill(self.found[-1], loss, rate, 0)
        for point in points:
            if len(self.found) >= _MOST:
                return
            row = point.order - first
            resume = Resume(point, loss.name if loss is not None else "")
            resume.before = loss.before(row) if loss is not None else []
            rates = rate.before(row) if rate is not None else []
            resume.rate_before = rates[-1] if rates else None
            _fill(resume, loss, rate, row)
            self.found.append(resume)


def _fill(resume: Resume, loss: Side | None, rate: Side | None, row: int) -> None:
    if loss is not None and len(resume.after) < _AROUND:
        resume.after = (resume.after + loss.after(row))[:_AROUND]
    if resume.rate_after is None and rate is not None:
        rates = rate.after(row)
        resume.rate_after = rates[0] if rates else None
