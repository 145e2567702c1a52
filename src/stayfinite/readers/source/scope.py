"""What the interpreter carries along: variables, the tests around the current line, and what it has seen."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from stayfinite.findings.subjects.source_file import Operation, Value

UNKNOWN = Value()
POSITIVE_UNKNOWN = Value(kind="number", low=0.0, low_open=True, traits=frozenset({"eps"}))
MASK_UNKNOWN = Value(kind="unknown", traits=frozenset({"named_mask"}))
NONE = Value(kind="none")


@dataclass(slots=True)
class ClassFacts:
    """A class of the file: its methods, and what its __init__ and body put into `self`."""

    name: str
    node: ast.ClassDef
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    prepared: bool = False


@dataclass(slots=True)
class Scope:
    """One function being followed."""

    variables: dict[str, Value] = field(default_factory=dict)
    function: str = ""
    owner: ClassFacts | None = None
    depth: int = 0
    no_grad: bool = False
    autocast: str | None = None  # the dtype of the autocast around
    guards: frozenset[str] = frozenset()  # variables that enclosing tests speak of
    selecting: frozenset[str] = frozenset()  # variables that the condition of a torch.where around speaks of
    branch: tuple[tuple[str, bool], ...] = ()
    loops: int = 0
    finite: frozenset[str] = frozenset()  # variables that the function tests with isfinite
    refuses_bad_norm: bool = False
    targets: frozenset[str] = frozenset()  # what the current statement assigns to
    returned: list[Value] = field(default_factory=list)


@dataclass(slots=True)
class Sight:
    """Everything seen in the file."""

    operations: list[Operation] = field(default_factory=list)
    inlined: int = 0
    calls: set[str] = field(default_factory=set)
