"""Growth: how a value became too large, from the input to the op that overflowed, and from step to step. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stayfinite.findings.jsonable import Json, jsonable


@dataclass(frozen=True, slots=True)
class ModuleStep:
    """One module on the way: the largest value that left it, and that divided by the largest that came in."""

    module: str
    kind: str
    max: float
    gain: float


@dataclass(frozen=True, slots=True)
class LineGain:
    """A line that enlarges what it is given, each time it runs."""

    file: str
    line: int
    source: str | None
    gain: float  # the geometric mean of its runs
    modules: int  # in how many modules it ran


@dataclass(frozen=True, slots=True)
class Growth:
    """The largest values, followed back from the birth to the input of the model."""

    by_depth: tuple[ModuleStep, ...] = ()
    lines: tuple[LineGain, ...] = ()  # on that way, the strongest first
    birth_line: LineGain | None = None  # the line of the birth, wherever else in the forward pass it ran
    by_time: tuple[tuple[int, float], ...] = ()  # step, largest output that was sampled

    def repeated(self, least: int = 3) -> tuple[str, int, float] | None:
        """The kind of module that is met most often on the way: its class, how often, and the gain of each."""
        kinds: dict[str, list[float]] = {}
        for step in self.by_depth:
            if step.kind and 0 < step.gain < math.inf:
                kinds.setdefault(step.kind, []).append(step.gain)
        found = [
            (kind, len(gains), math.exp(sum(map(math.log, gains)) / len(gains)))
            for kind, gains in kinds.items()
            if len(gains) >= least
        ]
        return max(found, key=lambda item: item[1] * math.log(item[2]), default=None)

    def to_json(self) -> dict[str, Json]:
        depth = [
            {"module": s.module, "kind": s.kind, "max": jsonable(s.max), "gain": jsonable(s.gain)}
            for s in self.by_depth
        ]
        lines = [_line_json(line) for line in self.lines]
        time: Sequence[dict[str, Json]] = [
            {"step": step, "max": jsonable(value)} for step, value in self.by_time
        ]
        own = {"birth_line": _line_json(self.birth_line)} if self.birth_line is not None else {}
        made: dict[str, Json] = jsonable({"by_depth": depth, "lines": lines, **own, "by_time": list(time)})  # type: ignore[assignment]
        return made


def _line_json(line: LineGain) -> dict[str, Json]:
    return {
        "file": line.file,
        "line": line.line,
        "source": line.source,
        "gain": jsonable(line.gain),
        "modules": line.modules,
    }
