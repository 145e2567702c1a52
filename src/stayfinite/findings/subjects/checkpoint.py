"""Checkpoint: a saved (or about to be saved) training state as plain data. No tensors, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(str, Enum):
    """What a tensor is for; a NaN means something else in each of them."""

    WEIGHTS = "weights"
    BUFFERS = "buffers"
    OPTIMIZER = "optimizer"
    AVERAGE = "ema"
    SCALER = "scaler"
    SCHEDULER = "scheduler"
    RANDOM = "rng"
    OTHER = "other"


@dataclass(slots=True)
class Statistics:
    """A tensor in a few numbers. `minimum` and `maximum` are those of its finite values."""

    minimum: float | None = None
    maximum: float | None = None
    nan: int = 0
    inf: int = 0
    positive_inf: int = 0
    first_bad: tuple[int, ...] | None = None
    zeros: int | None = None
    """Counted only where another number made it interesting."""
    negative: int | None = None

    @property
    def bad(self) -> int:
        """How many values are not finite (a complex value with both a NaN and an Inf part counts once)."""
        return self.nan + self.inf

    @property
    def largest(self) -> float:
        """The largest finite magnitude; 0 for an empty tensor."""
        return max(abs(self.minimum or 0.0), abs(self.maximum or 0.0))

    @property
    def constant(self) -> bool:
        """Every value is the same finite number."""
        return self.bad == 0 and self.minimum is not None and self.minimum == self.maximum


@dataclass(slots=True)
class Tensor:
    """One tensor of the checkpoint. Tied tensors appear once, with their other names in `aliases`."""

    name: str
    file: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    numel: int
    nbytes: int
    statistics: Statistics | None = None
    """None where the values were not read: not a number type, or the bytes are missing."""
    aliases: list[tuple[str, Kind]] = field(default_factory=list)
    parameter: str | None = None
    """For optimizer state: the name (or number) of the weight it belongs to."""
    role: str = ""
    """For optimizer state: exp_avg, exp_avg_sq, step...; else the last part of the name."""
    key: str = ""
    """Its name inside its own state dict: the same for a weight and for its average."""

    @property
    def floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def additive_mask(self) -> bool:
        """Zeros and -inf only (or one very negative number): an attention mask, infinite on purpose."""
        stats = self.statistics
        if stats is None or self.kind not in (Kind.BUFFERS, Kind.WEIGHTS, Kind.AVERAGE, Kind.OTHER):
            return False
        only_zero = stats.maximum in (None, 0.0)
        if stats.bad:
            negative_only = stats.nan == 0 and stats.positive_inf == 0
            return negative_only and only_zero and stats.minimum in (None, 0.0)
        fill_value = stats.constant and "mask" in self.role
        return (only_zero or fill_value) and stats.minimum is not None and stats.minimum <= -1e4


@dataclass(slots=True)
class Group:
    """One param group of an optimizer: its rate now and whatever rates a scheduler wrote beside it."""

    lr: float | None = None
    initial_lr: float | None = None
    max_lr: float | None = None
    min_lr: float | None = None
    options: dict[str, float] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Optimizer:
    """An optimizer's state: groups, and how many updates each parameter got."""

    name: str
    file: str
    groups: list[Group] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)
    entries: int = 0
    """How many parameters have any state at all."""
    flat: bool = False
    """Sharded or flattened state (ZeRO, FSDP flat parameters), which does not have the weights' shapes."""
    rank: int | None = None

    @property
    def step(self) -> float | None:
        """The number of updates of the parameter that got most."""
        finite = [value for value in self.steps.values() if math.isfinite(value)]
        return max(finite, default=None)


@dataclass(slots=True)
class Scheduler:
    """A learning-rate scheduler's state, with the schedulers it chains."""

    name: str
    kind: str = "scheduler"
    base_lrs: list[float] = field(default_factory=list)
    last_lr: list[float] = field(default_factory=list)
    last_epoch: int | None = None
    total: int | None = None
    inner: list[Scheduler] = field(default_factory=list)

    def chain(self) -> Iterator[Scheduler]:
        """This scheduler and all those inside it."""
        yield self
        for scheduler in self.inner:
            yield from scheduler.chain()


@dataclass(slots=True)
class Scaler:
    """A gradient scaler's state."""

    name: str
    file: str
    scale: float
    growth_tracker: int | None = None


@dataclass(slots=True)
class Problem:
    """Something wrong with the files themselves, found while reading them."""

    what: str
    """damaged, unreadable, duplicate, outside, oversized, missing-shard, collision, refused-global, rank-step."""
    file: str
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ConfiguredRate:
    """A learning rate that a configuration asks for."""

    key: str
    value: float
    file: str


@dataclass(slots=True)
class Number:
    """A plain number of the state that is not finite."""

    name: str
    file: str
    kind: Kind
    value: float


@dataclass(slots=True)
class Checkpoint:
    """Everything that is known about one checkpoint (a file, a folder, or a state in memory)."""

    path: str
    format: str = "unknown"
    files: list[str] = field(default_factory=list)
    nbytes: int = 0
    step: int | None = None
    step_from: str = ""
    """Where the step was read: a key of the state, trainer_state.json, or the file's name."""
    epoch: float | None = None
    world_size: int | None = None
    rank_steps: dict[str, int] = field(default_factory=dict)
    """For a checkpoint in one file per rank: the step each file says it was written at."""
    tensors: list[Tensor] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[Scheduler] = field(default_factory=list)
    scalers: list[Scaler] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    configured: list[ConfiguredRate] = field(default_factory=list)

    def of_kind(self, *kinds: Kind) -> list[Tensor]:
        """The tensors of some kinds, in the order of the file."""
        return [tensor for tensor in self.tensors if tensor.kind in kinds]

    def rates(self) -> dict[str, list[float]]:
        """All learning rates stored: current, initial, peak. Empty where there is none."""
        groups = [group for optimizer in self.optimizers for group in optimizer.groups]
        current = {group.lr for group in groups if group.lr is not None}
        initial = {group.initial_lr for group in groups if group.initial_lr is not None}
        peak = {group.max_lr for group in groups if group.max_lr is not None}
        for top in self.schedulers:
            for scheduler in top.chain():
                initial |= set(scheduler.base_lrs)
        if not current and not initial:
            return {}
        # Without a peak of its own (OneCycleLR has one) a schedule starts at the base rate or warms up to it.
        return {
            "current": sorted(current),
            "initial": sorted(initial or current),
            "peak": sorted(peak or initial or current),
        }
