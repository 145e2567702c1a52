"""ProbedModel: what `stayfinite probe` measured on a model before its training. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Located:
    """Where a bad value was born, as the tracer saw it, and the cause that the rules for failing steps name."""

    op: str | None = None
    file: str | None = None
    line: int | None = None
    source: str | None = None
    module: str | None = None
    phase: str | None = None
    cause: str | None = None
    explained_by: str | None = None  # the code of the rule
    message: str | None = None
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One forward and backward pass under one condition."""

    battery: str
    condition: str  # "all-zero inputs"
    outcome: (
        str  # "finite", "output", "loss", "component", "gradient", "spike", "parameter", "raised", "not run"
    )
    what: str = ""  # "the loss is NaN", or why it did not run
    expected: str = "normal"  # "normal": must work; "beyond": outside the range that the data shows
    located: Located = field(default_factory=Located)
    spares_weights: bool = False  # the loss is bad, and yet every gradient is finite

    @property
    def failed(self) -> bool:
        return self.outcome not in ("finite", "raised", "not run")


@dataclass(frozen=True, slots=True)
class LossLevel:
    """A cross entropy that the loss function computed, against what guessing would give."""

    call: str
    value: float
    chance: float
    classes: int
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ParameterGradient:
    """The gradient that one parameter got."""

    name: str
    is_weight: bool  # a matrix or kernel of a layer that is not an embedding
    missing: bool
    zero: bool
    rms: float
    later_zero: bool = True  # still exactly zero (or missing) after the parameters moved a little


@dataclass(frozen=True, slots=True)
class CutGradient:
    """A clamp or a rectifier that stopped the gradient of every element."""

    call: str
    numel: int
    file: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest magnitude that an operation put out in float32 beyond float16's limit, from inputs within it."""

    op: str
    absmax: float
    file: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class BlockGrowth:
    """The size (root mean square) of what each of several equal blocks put out, in the order they ran."""

    blocks: str  # "blocks.*"
    kind: str
    rms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class UpdateSize:
    """What one optimizer step did to one parameter."""

    name: str
    dtype: str
    with_gradient: int  # elements with a non-zero gradient
    unchanged: int  # of these, those that are bit for bit the same
    ratio: float | None  # root mean square of the update over that of the weight
    is_weight: bool


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the directed search came to."""

    found: bool
    seconds: float
    trials: int
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    declared: bool = False
    times: float = 1.0  # how far beyond the range that the batch shows, where none was declared
    condition: str = ""
    what: str = ""
    located: Located = field(default_factory=Located)
    test: str = ""
    reason: str = ""  # why it ended

    @property
    def counts(self) -> bool:
        """Held against the model: inside a declared range, or up to ten times what the batch shows.

        Farther out any model with an exp fails somewhere.
        """
        return self.found and (self.declared or self.times <= 10)


@dataclass(frozen=True, slots=True)
class StressResult:
    """A short run at a multiple of the learning rate."""

    times: float
    rate: float
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    first: str = ""  # "", "loss", "gradient", "parameter", "divergence", "spike"
    at_step: int | None = None
    what: str = ""
    calm_at_own_rate: bool | None = None  # the same steps at the learning rate itself
    located: Located = field(default_factory=Located)
    own_steps: int = 0  # made at the learning rate itself
    growths: tuple[BlockGrowth, ...] = ()  # at the last of them that was finite


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """What a rule decides from: `class LossFarFromChance(Rule[ProbedModel])`."""

    name: str
    trials: tuple[Trial, ...] = ()
    losses: tuple[LossLevel, ...] = ()
    gradients: tuple[ParameterGradient, ...] = ()
    cuts: tuple[CutGradient, ...] = ()
    peaks: tuple[Peak, ...] = ()
    growths: tuple[BlockGrowth, ...] = ()
    updates: tuple[UpdateSize, ...] = ()
    searches: tuple[SearchResult, ...] = ()
    stress: StressResult | None = None
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def failures(self, battery: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.battery == battery and trial.failed]
