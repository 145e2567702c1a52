"""What the source rules share: where an operation stands, and how to say where a value comes from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from stayfinite.findings import Severity
from stayfinite.findings.subjects.source_file import Event, Guard, NamedConstant, Operation, SourceFile, Value

_LEAVES = re.compile(
    r"(\.(cpu|float|double|mean|sum|min|max|squeeze)\(\))*\.((item|detach|numpy|tolist)\(|data\b)"
)
_WORDS = {
    "softmax": "a softmax, which underflows to exactly 0",
    "sigmoid": "a sigmoid, which saturates to exactly 0 and 1",
    "tanh": "a tanh, which saturates to exactly -1 and 1",
    "relu": "a ReLU, which is exactly 0 for half of its inputs",
    "bincount": "counts, which are 0 for an absent class",
    "histc": "counts, which are 0 for an empty bin",
    "var": "a variance, which is 0 for constant values",
    "std": "a deviation, which is 0 for constant values",
    "norm": "a norm, which is 0 for a zero vector",
    "vector_norm": "a norm, which is 0 for a zero vector",
    "range": "max - min, which is 0 for constant values",
    "compare": "a mask, of which nothing may be set",
    "cosine_similarity": "a cosine, which rounds to exactly 1 for parallel vectors",
    "square": "a square, which may be 0",
    "tensor": "values written in the source",
    "rand": "uniform noise, which includes 0",
    "rand_like": "uniform noise, which includes 0",
    "randn": "noise of either sign",
    "randn_like": "noise of either sign",
    "full": "a constant",
    "Parameter": "a parameter that starts at 0",
    "exp": "an exponential, which underflows to exactly 0",
    "normalize": "unit vectors",
    "one_hot": "a one-hot code, which is mostly 0",
    "log_softmax": "a log-probability, which reaches 0",
    "Linear": "the output of a linear layer, which has no bounds",
    "prod": "a product of probabilities, which underflows",
}


def at(subject: SourceFile, placed: Operation | Event | Guard | NamedConstant) -> dict[str, Any]:
    """file, line and column of a finding."""
    return {"file": subject.path, "line": placed.line, "column": placed.column}


def level(operation: Operation, usual: Severity) -> Severity:
    """A result that the script itself tests with isfinite is reported as a note."""
    return Severity.INFO if operation.checked else usual


def origin(value: Value) -> str:
    """Where a value comes from, in words."""
    for operation in value.chain(5):
        words = _WORDS.get(operation.name)
        if words is not None:
            return f"{words} (line {operation.line})"
    return interval(value)


def interval(value: Value) -> str:
    """[0, 1], (0, inf)"""
    left = "(" if value.low_open or math.isinf(value.low) else "["
    right = ")" if value.high_open or math.isinf(value.high) else "]"
    return f"{left}{value.low:g}, {value.high:g}{right}"


def evidence(operation: Operation, *values: Value) -> dict[str, Any]:
    """The numbers behind a finding."""
    found: dict[str, Any] = {"expression": operation.text}
    if values:
        found["interval"] = interval(values[0])
        made = values[0].made
        if made is not None:
            found["made_by"], found["made_at"] = made.name, made.line
    return found


def edit(operation: Operation, replacement: str) -> dict[str, Any]:
    """An exact replacement of the operation's text, for --fix; only of what stands on one line."""
    if operation.line != operation.end_line:
        return {}
    place = {
        "line": operation.line,
        "column": operation.column,
        "end_column": operation.end_column,
        "old": operation.text,
        "new": replacement,
    }
    return {"edit": place}


def grows_with_gradient(operation: Operation, value: Value) -> bool:
    """A gradient may flow through the operation (not known counts), and no ReLU swallows it on the way back."""
    if operation.no_grad or value.grad is False or value.kind == "number":
        return False
    return value.made_by("relu", "relu_", "relu6", depth=6) is None


def just_made(value: Value) -> bool:
    """A tensor of zeros as it was allocated: it is there to be filled, by ways that are not followed."""
    trained = value.grad is True or value.has("parameter")
    return value.has("constant") and value.low == value.high == 0.0 and not trained


def selected_later(subject: SourceFile, operation: Operation) -> bool:
    """A torch.where that tests one of its variables picks the result up: `where(n > 0, x / n, 0)` in two lines."""
    return any(
        where.function == operation.function
        and len(where.operands) > 2
        and where.operands[0].made is not None
        and not where.operands[0].made.names.isdisjoint(operation.names)
        and any(branch.made is operation for branch in where.operands[1:3])
        for where in subject.named("where")
    )


def unguarded(subject: SourceFile, *names: str, operands: int = 1) -> Iterator[Operation]:
    """Operations of these names, with at least so many operands, around which no test speaks of their variables."""
    return (o for o in subject.named(*names) if len(o.operands) >= operands and not o.guarded)


def unprotected(subject: SourceFile, *names: str, operands: int = 1) -> Iterator[Operation]:
    """Those of them whose result no torch.where picks up either."""
    for operation in unguarded(subject, *names, operands=operands):
        if not operation.selected and not selected_later(subject, operation):
            yield operation


def taken_out(subject: SourceFile, operation: Operation) -> bool:
    """The result leaves the graph at once: `.item()`, `.detach()` or `.cpu().data.numpy()` follow."""
    rest = subject.line(operation.end_line)[operation.end_column - 1 :]
    return _LEAVES.match(rest.lstrip(")")) is not None
