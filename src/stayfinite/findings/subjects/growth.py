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


_EACH, _IN_ALL, _MODULES = 1.3, 10.0, 3
_AT_BIRTH = 4.0


@dataclass(frozen=True, slots=True)
class Growth:
    """The largest values, followed back from the birth to the input of the model."""

    by_depth: tuple[ModuleStep, ...] = ()
    lines: tuple[LineGain, ...] = ()  # on that way, the strongest first
    birth_line: LineGain | None = None  # the line of the birth, wherever else in the forward pass it ran
    by_time: tuple[tuple[int, float], ...] = ()  # step, largest output that was sampled

    @property
    def at_birth(self) -> LineGain | None:
        """The line of the birth, if it enlarges in several modules, and more than repeated blocks do."""
        own, blocks = self.birth_line, self._enlarging_blocks()
        least = max(_AT_BIRTH, blocks[2] if blocks is not None else 0.0)
        return own if own is not None and own.modules >= _MODULES and own.gain >= least else None

    @property
    def blocks(self) -> tuple[str, int, float] | None:
        """Blocks that enlarge one after the other: their class, how many, the gain of each; None if it is the line."""
        return self._enlarging_blocks() if self.at_birth is None else None

    def _enlarging_blocks(self) -> tuple[str, int, float] | None:
        found = self.repeated()
        if found is None or found[2] < _EACH or found[1] * math.log(found[2]) < math.log(_IN_ALL):
            return None
        return found

    def repeated(self, least: int = _MODULES) -> tuple[str, int, float] | None:
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
