"""Record: what the batteries write down while they run; becomes the subject that the rules examine."""

from __future__ import annotations

from dataclasses import dataclass, field

from stayfinite.findings.subjects.probed_model import (
    BlockGrowth,
    CutGradient,
    LossLevel,
    ParameterGradient,
    Peak,
    ProbedModel,
    SearchResult,
    StressResult,
    Trial,
    UpdateSize,
)


@dataclass(slots=True)
class Record:
    """Grows; `subject` freezes it."""

    name: str
    trials: list[Trial] = field(default_factory=list)
    losses: list[LossLevel] = field(default_factory=list)
    gradients: list[ParameterGradient] = field(default_factory=list)
    cuts: list[CutGradient] = field(default_factory=list)
    peaks: list[Peak] = field(default_factory=list)
    growths: list[BlockGrowth] = field(default_factory=list)
    updates: list[UpdateSize] = field(default_factory=list)
    searches: list[SearchResult] = field(default_factory=list)
    stress: StressResult | None = None
    notes: dict[str, list[str]] = field(default_factory=dict)

    def note(self, battery: str, line: str) -> None:
        """A line of evidence for a person."""
        self.notes.setdefault(battery, []).append(line)

    def subject(self) -> ProbedModel:
        return ProbedModel(
            name=self.name,
            trials=tuple(self.trials),
            losses=tuple(self.losses),
            gradients=tuple(self.gradients),
            cuts=tuple(self.cuts),
            peaks=tuple(self.peaks),
            growths=tuple(self.growths),
            updates=tuple(self.updates),
            searches=tuple(self.searches),
            stress=self.stress,
            notes={battery: tuple(lines) for battery, lines in self.notes.items()},
        )
