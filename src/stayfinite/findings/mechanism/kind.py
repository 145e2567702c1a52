"""Mechanism: what happened at a birth, as one of a few kinds, with the operand that decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth


class Kind(Enum):
    """The ways in which a finite computation goes bad."""

    CAME_IN = auto()  # not computed: the batch, a literal, a parameter or state that was bad before the step
    CONSTANT_COLUMN = auto()  # a table that came in with columns of NaN beside rescaled ones
    UNINITIALISED = auto()
    ABSURD_PARAMETER = auto()  # a parameter or buffer beyond 1e20
    LOG_OF_ZERO = auto()
    LOG_OF_NEGATIVE = auto()
    RATIO_INTO_LOG = auto()
    EXP_OVERFLOW = auto()
    POWER_OVERFLOW = auto()
    EXP_UNDERFLOW = auto()  # a sum of exponentials that is 0 divides
    EMPTY_REDUCTION = auto()
    FREQUENCY_ZERO = auto()
    DIVISION_BY_ZERO = auto()  # word: count, sum, constant, ...
    CONSTANT_RESCALED = auto()  # word: a range, a standard deviation, ...
    BOX_WITHOUT_SIZE = auto()
    SPREAD_OF_ONE = auto()
    SOFTMAX_EMPTY_ROW = auto()
    MASK_OVERFLOW = auto()
    MASK_OF_INFINITY = auto()
    ZERO_TIMES_INF = auto()
    CTC_INFEASIBLE = auto()
    INDEX_INVALID = auto()
    ROOT_OF_NEGATIVE = auto()
    ROOT_GRADIENT_AT_ZERO = auto()
    ZERO_NORM = auto()
    SCALE_NOT_POSITIVE = auto()
    HIDDEN = auto()  # finite in the forward pass thanks to a where and the like, and back in the gradient
    INVERSE_AT_EDGE = auto()
    DEGENERATE_DECOMPOSITION = auto()
    EPS_VANISHED = auto()
    HALF_UPDATE = auto()  # inside the optimizer, in half precision
    OPTIMIZER_DIVISION = auto()  # inside the optimizer, by zero
    HALF_OVERFLOW = auto()  # the same op in float32 is finite
    GROWN = auto()  # a legal op on values that are too large
    UNKNOWN = auto()


DEPENDS_ON_SIZE: Final = frozenset({
    Kind.LOG_OF_ZERO, Kind.LOG_OF_NEGATIVE, Kind.RATIO_INTO_LOG, Kind.EXP_OVERFLOW, Kind.POWER_OVERFLOW,
    Kind.EXP_UNDERFLOW, Kind.SOFTMAX_EMPTY_ROW, Kind.MASK_OVERFLOW, Kind.MASK_OF_INFINITY, Kind.ZERO_TIMES_INF,
    Kind.ZERO_NORM, Kind.SCALE_NOT_POSITIVE, Kind.ABSURD_PARAMETER, Kind.HALF_OVERFLOW, Kind.GROWN, Kind.UNKNOWN,
})  # fmt: skip
"""Kinds that weights of an absurd size bring about. The others are about data, emptiness or the form of the code."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What happened at one birth."""

    kind: Kind
    operand: Operand | None = None  # the one that decides: the divisor, the argument of the logarithm
    count: int = 0  # elements (rows, samples) that are concerned
    # a finer name within the kind: what a divisor is, what hides a value, which side of a domain
    word: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)  # further numbers for the evidence


@dataclass(frozen=True, slots=True)
class Judged:
    """A birth with its mechanism. `depth` counts from 1: how many causes of this step came before it."""

    birth: TracedBirth
    how: Mechanism
    depth: int
