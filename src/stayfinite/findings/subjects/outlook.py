"""Outlook: what grows in a run that is still finite, and when it reaches which limit. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stayfinite.findings.subjects.run_record import StepRecord

FLOAT16_LIMIT = 65504.0
SQUARED_LIMIT = 1.8446743e19
"""The largest number whose square float32 and bfloat16 can hold."""


@dataclass(frozen=True, slots=True)
class ModuleVital:
    """What came out of one module in a sampled step, and how it compares with what went in."""

    max: float  # largest magnitude of the output
    rms: float
    gain: float | None = None  # rms of the output / rms of the input
    kind: str = ""  # the class of the module
    limit: float | None = None  # where the dtype it computes in ends
    # what runs towards the limit: the output, or what is cast to that dtype on the way in
    peak: float | None = None

    @property
    def size(self) -> float:
        return self.max if self.peak is None else max(self.max, self.peak)


@dataclass(frozen=True, slots=True)
class VitalSample:
    """All that was measured in one sampled step."""

    step: int
    modules: Mapping[str, ModuleVital] = field(default_factory=dict)
    groups: tuple[Mapping[str, float], ...] = ()  # one a group of parameters
    zeros: Mapping[str, float] = field(default_factory=dict)  # shares of zeros and subnormals in half tensors
    logits: float | None = None  # the largest attention logit that was seen
    # place -> argument of an exponential, and its limit
    exponents: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # place -> largest float16 score before a softmax
    scores: Mapping[str, float] = field(default_factory=dict)
    scale: float | None = None
    scale_floor: float | None = None
    skipped: float | None = None  # share of the last steps that were not applied


@dataclass(frozen=True, slots=True)
class Amplifier:
    """Modules of one kind that enlarge what they are given."""

    kind: str
    gain: float  # the geometric mean of theirs
    names: tuple[str, ...]

    def __str__(self) -> str:
        each = f"each of {len(self.names)} `{self.kind}`" if len(self.names) > 1 else f"`{self.names[0]}`"
        return f"x {self.gain:.3g} in {each}"


@dataclass(frozen=True, slots=True)
class Outlook:
    """A trend that ends at a limit: what a rule about the future of a run examines."""

    step: int
    what: str  # "largest output", "argument of exp", "attention score", "loss scale"
    where: str  # the module, or the line
    kind: str  # the class of that module
    value: float
    limit: float
    factor: float  # by which it grows a step, now
    low: float  # steps that are left at the least
    high: float  # and at the most
    first_step: int  # where the trend was seen to begin, and at what value
    first_value: float
    dtype: str = ""
    amplifiers: tuple[Amplifier, ...] = ()
    far: StepRecord | None = None  # the first recent update that moved the weights by many times their size

    @property
    def modules(self) -> list[str]:
        """The names of the modules that amplify, then the one nearest to the limit."""
        names = [name for amplifier in self.amplifiers for name in amplifier.names]
        return list(dict.fromkeys([*names, self.where]))
