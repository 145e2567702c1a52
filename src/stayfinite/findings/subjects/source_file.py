"""SourceFile: a Python file as the source rules see it. Plain data, made without executing anything.

A `Value` is what is known of an expression: the interval it lies in, whether the ends are reached, what made it.
An `Operation` is a call (or an arithmetic operation) with the values that go into it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

INF = math.inf


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What is known of one expression. Without `made` nothing is known of where it comes from."""

    kind: str = "unknown"  # tensor, number, mask, module, optimizer, scaler, scheduler, text, tuple, dtype...
    low: float = -INF
    high: float = INF
    low_open: bool = False  # the lower end is never reached
    high_open: bool = False
    const: object = None  # a number, text or truth value that is written in the source
    made: Operation | None = None
    dtype: str | None = None  # float16, bfloat16, float32; None where it is not known
    grad: bool | None = None  # a gradient flows: yes, no, not known
    shape: tuple[int | None, ...] | None = None
    items: tuple[Value, ...] | None = None
    traits: frozenset[str] = frozenset()
    reference: object = None  # a class, function or module description of the reader's own

    @property
    def half(self) -> bool:
        return self.dtype == "float16"

    @property
    def number(self) -> float | None:
        """The number that is written in the source; NaN is none, and what float cannot hold is infinite."""
        if not isinstance(self.const, (int, float)) or isinstance(self.const, bool):
            return None
        try:
            value = float(self.const)
        except OverflowError:
            return INF if self.const > 0 else -INF
        return None if math.isnan(value) else value

    @property
    def known(self) -> bool:
        """Something is known of where it comes from, so that its interval means something."""
        return self.made is not None

    def reaches(self, point: float) -> bool:
        """The point lies in the interval, its reached ends included."""
        if self.low < point < self.high:
            return True
        return (point == self.low and not self.low_open) or (point == self.high and not self.high_open)

    def below(self, point: float) -> bool:
        """Something below the point lies in the interval."""
        return self.low < point

    def has(self, trait: str) -> bool:
        return trait in self.traits

    def chain(self, depth: int = 6) -> Iterator[Operation]:
        """The operations behind this value, nearest first."""
        level: list[Value] = [self]
        seen: set[int] = set()
        for _ in range(depth):
            following: list[Value] = []
            for value in level:
                made = value.made
                if made is None or id(made) in seen:
                    continue
                seen.add(id(made))
                yield made
                following.extend(made.operands)
            level = following

    def made_by(self, *names: str, depth: int = 6) -> Operation | None:
        """The nearest operation of these names behind this value."""
        return next((operation for operation in self.chain(depth) if operation.name in names), None)


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation: what it is called, where it stands, what goes in, and under which circumstances."""

    name: str
    line: int
    column: int
    end_line: int
    end_column: int
    operands: tuple[Value, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    names: frozenset[str] = frozenset()  # the variables in its expression
    function: str = ""
    no_grad: bool = False
    guarded: bool = False  # an enclosing test speaks of one of its variables
    # it stands in a branch of a torch.where whose condition speaks of one of its variables
    selected: bool = False
    checked: bool = False  # its result is tested with isfinite, or a clip refuses a bad norm
    in_loop: bool = False
    text: str = ""
    branch: tuple[tuple[str, bool], ...] = ()  # the tests around it, and which way they went
    style: str = ""  # "function" for torch.log(x), "method" for x.log(), "operator" for x / y

    def option(self, name: str, position: int | None = None) -> Value | None:
        """A keyword argument, or the positional one in its place (the receiver counts as 0)."""
        if name in self.options:
            return self.options[name]
        if position is not None and position < len(self.operands):
            return self.operands[position]
        return None


@dataclass(frozen=True, slots=True)
class Event:
    """Something a training loop does: zero_grad, backward, unscale, clip, step, scheduler, update, check..."""

    what: str
    line: int
    column: int
    subject: str  # the variable it is done to
    branch: tuple[tuple[str, bool], ...] = ()
    loop: tuple[int, ...] = ()  # the lines of the loops around it
    scaled: bool = False  # by way of a GradScaler
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Guard:
    """An `if` that decides whether a batch counts."""

    line: int
    column: int
    test: str
    compared: tuple[str, ...] = ()  # variables compared by < or > with a number
    only_nan: tuple[str, ...] = ()  # variables asked for NaN and not for Inf
    finite: tuple[str, ...] = ()  # variables asked with isfinite, or for both NaN and Inf
    never: tuple[str, ...] = ()  # variables compared with NaN by ==, which is never true
    skips: bool = False  # the body leaves the batch out
    zeroes: bool = False  # the body sets gradients to zero
    steps_after: bool = False  # the optimizer steps all the same
    loop: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What one function (or the module's own code) does in order."""

    name: str
    events: tuple[Event, ...] = ()
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedConstant:
    """A number with a name: `eps = 1e-20`, a default, a keyword."""

    name: str
    value: float
    line: int
    column: int
    role: str  # assignment, default, keyword


@dataclass(frozen=True, slots=True)
class HalfModel:
    """Where a project turns a whole model into half precision."""

    file: str
    line: int
    dtype: str
    branch: tuple[tuple[str, bool], ...] = ()  # the tests it stands behind


@dataclass(slots=True)
class SourceFile:
    """A Python file, read and followed."""

    path: str
    text: str = ""
    operations: list[Operation] = field(default_factory=list)
    functions: list[FunctionFacts] = field(default_factory=list)
    constants: list[NamedConstant] = field(default_factory=list)
    half_model: HalfModel | None = None  # in this file or in one beside it
    uses_scaler: bool = False
    calls: frozenset[str] = frozenset()  # the last names of everything called
    suppressed: Mapping[int, frozenset[str]] = field(default_factory=dict)  # line -> codes; "*" for all
    settings: Mapping[str, float] = field(default_factory=dict)

    def line(self, number: int) -> str:
        """One line of the text; "" where there is none."""
        lines = self.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def named(self, *names: str) -> Iterator[Operation]:
        """The operations of these names."""
        for operation in self.operations:
            if operation.name in names:
                yield operation
