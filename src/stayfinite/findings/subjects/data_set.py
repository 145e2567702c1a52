"""DataSet: a data file, or the batches of a loader, as plain data: what its arrays hold, sample by sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum


class Use(str, Enum):
    """What an array is for, as its name, type and shape say."""

    INPUT = "input"
    EMBEDDING = "embedding"
    LABEL = "label"
    BOX = "box"
    LENGTH = "length"
    OTHER = "other"


@dataclass(slots=True)
class Samples:
    """Which samples: how many, and the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    MOST = 20

    def __bool__(self) -> bool:
        return self.count > 0


@dataclass(slots=True)
class DataArray:
    """One array: a row is a sample."""

    name: str
    use: Use
    dtype: str
    shape: tuple[int, ...]
    rows: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    mean: float | None = None
    deviation: float | None = None
    """Of a part of the values, where there are many."""
    nan: int = 0
    inf: int = 0
    first_bad: tuple[int, ...] | None = None
    bad: Samples = field(default_factory=Samples)
    constant: Samples = field(default_factory=Samples)
    zero: Samples = field(default_factory=Samples)
    ignored: Samples = field(default_factory=Samples)
    """Label rows in which every label is ignored."""
    outside: Samples = field(default_factory=Samples)
    """Rows with a value outside the expected range, classes or norm."""
    outside_values: list[float] = field(default_factory=list)
    far: Samples = field(default_factory=Samples)
    """Rows whose largest magnitude is a thousand times that of ordinary rows."""
    far_value: float = 0.0
    typical: float = 0.0
    """The median over blocks of the largest magnitude."""
    duplicates: Samples = field(default_factory=Samples)
    """Rows that equal an earlier one, bit for bit."""
    duplicate_of: list[int] = field(default_factory=list)
    constant_columns: list[int] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    whole_numbers: bool = False
    """Every value looked at is an integer, though the type is a float."""
    note: str = ""
    """What was not looked at, and why."""

    @property
    def floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def largest(self) -> float:
        return max(
            (abs(value) for value in (self.minimum, self.maximum) if math.isfinite(value)), default=0.0
        )


@dataclass(slots=True)
class BoxFaults:
    """Boxes without area in an array of boxes."""

    array: str
    layout: str
    """x1 y1 x2 y2, or x y w h: as most of the boxes are."""
    total: int
    bad: Samples = field(default_factory=Samples)


@dataclass(slots=True)
class AlignmentFaults:
    """CTC samples with fewer frames than labels and repeats."""

    frames: str
    labels: str
    total: int
    bad: Samples = field(default_factory=Samples)
    example: tuple[int, int] = (0, 0)
    """Frames there are and frames needed, of the first."""


@dataclass(slots=True)
class DataProblem:
    """A file, or a part of it, that cannot be read."""

    file: str
    message: str
    what: str = "damaged"


@dataclass(slots=True)
class Expectation:
    """What the user says about the data."""

    low: float | None = None
    high: float | None = None
    norm: float | None = None
    classes: int | None = None
    ignore_index: int = -100


@dataclass(slots=True)
class DataSet:
    """One data file (or a folder of images, or what a loader gave)."""

    path: str
    format: str = "unknown"
    nbytes: int = 0
    arrays: list[DataArray] = field(default_factory=list)
    boxes: list[BoxFaults] = field(default_factory=list)
    alignments: list[AlignmentFaults] = field(default_factory=list)
    problems: list[DataProblem] = field(default_factory=list)
    expected: Expectation = field(default_factory=Expectation)
    ids: list[str] = field(default_factory=list)
    """Names of the samples, where the file has them."""

    def name_of(self, sample: int) -> str:
        """A sample by its own name, else by its number."""
        return self.ids[sample] if 0 <= sample < len(self.ids) else str(sample)

    def named(self, samples: Samples, most: int = 5) -> str:
        """ "samples 17, 204 and 3 more"."""
        shown = [self.name_of(sample) for sample in samples.first[:most]]
        more = samples.count - len(shown)
        word = "sample" if samples.count == 1 else "samples"
        return f"{word} {', '.join(shown)}" + (f" and {more} more" if more > 0 else "")

    @property
    def caches(self) -> list[DataArray]:
        """Arrays of vectors that were computed once and kept."""
        return [array for array in self.arrays if array.use is Use.EMBEDDING]

    def recompute(self) -> str | None:
        """Of an embedding cache: "nothing", "rows" or "all" has to be computed again; None for other data."""
        if not self.caches:
            return None
        if self.problems:
            return "all"
        broken = max(array.bad.count + array.zero.count for array in self.caches)
        rows = max(array.rows for array in self.caches)
        return "nothing" if not broken else "rows" if broken <= rows // 10 else "all"
