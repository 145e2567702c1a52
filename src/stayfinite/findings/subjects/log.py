"""Log: what a training log says, as plain data. Built from a stream, so it is small however long the log is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class Role(str, Enum):
    """What a series of numbers is, as its name says."""

    LOSS = "loss"
    EVALUATION = "validation loss"
    COMPONENT = "loss component"
    NORM = "gradient norm"
    RATE = "learning rate"
    SCALE = "loss scale"
    UPDATE = "update"
    SKIPPED = "skipped steps"
    SUCCESS = "success rate"
    METRIC = "metric"


CORE = (Role.LOSS, Role.COMPONENT, Role.EVALUATION, Role.NORM, Role.RATE, Role.SCALE, Role.UPDATE)
"""Roles whose values are looked at one by one; of a metric only what is not finite is."""


@dataclass(frozen=True, slots=True)
class Point:
    """One number of the log: the step it belongs to, where it is written, and its place in the order of the log."""

    step: float
    value: float
    line: int
    order: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring values of a series in a few numbers, for charts and levels. Bounds are those of finite values."""

    order: int
    step: float
    last_step: float
    low: float
    high: float
    total: float
    finite: int
    bad: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.finite if self.finite else math.nan


@dataclass(slots=True)
class Series:
    """One named quantity over the whole log."""

    name: str
    role: Role
    count: int = 0
    nan: int = 0
    inf: int = 0
    refused: int = 0
    """Of the bad values, those of steps that a guard did not apply."""
    minimum: float = math.inf
    maximum: float = -math.inf
    first: Point | None = None
    last: Point | None = None
    first_bad: Point | None = None
    last_bad: Point | None = None
    around: dict[str, float] = field(default_factory=dict)
    """Of a loss or gradient norm: the other core series at the moment of its first bad value."""
    last_finite: Point | None = None
    repeated: int = 0
    """How often the last value was written without a change, up to the end of the log."""
    repeated_since: Point | None = None
    head: list[Point] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)
    nulls: int = 0
    """Empty values at the end, where there had been numbers."""
    null_since: int | None = None

    @property
    def bad(self) -> int:
        return self.nan + self.inf

    @property
    def ends_bad(self) -> bool:
        """The last value written is not finite."""
        return self.last is not None and self.last is self.last_bad


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened at one point of the log."""

    what: str
    """nonfinite, spike, scale-fell, resume, rate-jump, skip; or an event that the run itself wrote."""
    series: str
    point: Point
    usual: float | None = None
    """What the value was before."""


@dataclass(slots=True)
class Resume:
    """A place where the step count goes back into the middle of the run, or the run says that it was restored."""

    point: Point
    """`value` is the step before it."""
    loss: str = ""
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    rate_before: float | None = None
    rate_after: float | None = None


@dataclass(slots=True)
class Trouble:
    """The first value of a loss, loss component or gradient norm that is not finite, and what stood around it."""

    series: str
    role: Role
    point: Point
    around: dict[str, float] = field(default_factory=dict)
    """Of every other core series the value at that moment."""
    before: dict[str, list[Point]] = field(default_factory=dict)
    """Of every core series the last finite values before it, oldest first."""


@dataclass(slots=True)
class ConfiguredLogRate:
    """A learning rate that a configuration asks for."""

    key: str
    value: float
    file: str


@dataclass(slots=True)
class Log:
    """Everything that is known about one log."""

    path: str
    format: str = "unknown"
    nbytes: int = 0
    records: int = 0
    lines: int = 0
    unread: int = 0
    """Lines that hold no numbers with names; not an error."""
    first_step: float | None = None
    last_step: float | None = None
    counted: bool = True
    """The log names its steps; else `step` is the number of the record."""
    series: dict[str, Series] = field(default_factory=dict)
    trouble: Trouble | None = None
    happenings: list[Happening] = field(default_factory=list)
    happened: dict[str, int] = field(default_factory=dict)
    """How often each kind of happening was seen, also those that are not kept."""
    actions: dict[str, int] = field(default_factory=dict)
    """Of a stayfinite run: how often each action was taken (none, skip, rollback...)."""
    longest_skip: int = 0
    """The most skipped steps in a row."""
    configured: list[ConfiguredLogRate] = field(default_factory=list)
    resumes: list[Resume] = field(default_factory=list)
    restarts: int = 0
    """How often the step count began anew (a new epoch, or a run that was started over)."""

    def of_role(self, *roles: Role) -> list[Series]:
        return [series for series in self.series.values() if series.role in roles and series.count]

    def main(self, role: Role) -> Series | None:
        """The series of a role that has most values; the shortest name among equals."""
        found = self.of_role(role)
        return min(found, key=lambda series: (-series.count, len(series.name)), default=None)

    def kept(self, *what: str) -> Iterator[Happening]:
        return (happening for happening in self.happenings if happening.what in what)


def at(point: Point, counted: bool = True) -> str:
    """ "step 1200"; "record 1200" of a log without steps; "epoch 2.03" of one that counts in parts of an epoch."""
    whole = float(point.step).is_integer()
    unit = "record" if not counted else "step" if whole else "epoch"
    return f"{unit} {int(point.step) if whole else point.step}"
