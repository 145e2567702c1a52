"""The record of what the interpreter saw: operations with their circumstances, and the values they give."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from stayfinite.findings.subjects.source_file import Operation, Value
from stayfinite.readers.source import transfer
from stayfinite.readers.source.names import variables
from stayfinite.readers.source.scope import ClassFacts, Scope, Sight
from stayfinite.readers.source.transfer import Draft

_LEAST_OPERANDS = {"div": 2, "true_divide": 2, "divide": 2, "add": 2, "accumulate": 2, "cast": 1}


class Recorder:
    """Holds the file and the scope, and notes operations."""

    def __init__(self, lines: Sequence[str], imported: dict[str, str]) -> None:
        self.lines = lines
        self.imported = imported
        self.sight = Sight()
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.classes: dict[str, ClassFacts] = {}
        self.scope = Scope()
        self.globals: dict[str, Value] = {}

    def record(
        self,
        node: ast.expr,
        name: str,
        operands: Sequence[Value],
        options: dict[str, Value] | None = None,
        *,
        style: str,
        keep: bool,
    ) -> Operation:
        """An operation at this place; `keep` puts it before the rules."""
        scope = self.scope
        keep = keep and len(operands) >= _LEAST_OPERANDS.get(name, 0)  # a call that torch would refuse
        names = variables(node)
        guards = scope.guards
        guarded = bool(guards) and (
            not guards.isdisjoint(names)
            or any(not guards.isdisjoint(made.names) for value in operands for made in value.chain(4))
        )
        selected = bool(scope.selecting) and not scope.selecting.isdisjoint(names)
        checked = scope.refuses_bad_norm or (
            bool(scope.finite) and not scope.finite.isdisjoint(scope.targets)
        )
        operation = Operation(
            name=name,
            line=node.lineno,
            column=node.col_offset + 1,
            end_line=node.end_lineno or node.lineno,
            end_column=(node.end_col_offset or node.col_offset) + 1,
            operands=tuple(operands),
            options=options or {},
            names=names,
            function=scope.function,
            no_grad=scope.no_grad,
            guarded=guarded,
            selected=selected,
            checked=checked,
            in_loop=scope.loops > 0,
            text=self.text_of(node) if keep else "",
            branch=scope.branch,
            style=style,
        )
        if keep:
            self.sight.operations.append(operation)
        return operation

    def result(self, draft: Draft, operation: Operation, operands: Sequence[Value]) -> Value:
        """The value that an operation gives."""
        grad = draft.grad
        if grad is None:
            flows = [value.grad for value in operands if value.kind not in ("number", "none", "dtype")]
            grad = (
                True if True in flows else (False if flows and all(flow is False for flow in flows) else None)
            )
        if operation.no_grad:
            grad = False
        dtype = draft.dtype or transfer.dtype_of(operands)
        return Value(
            draft.kind, *draft.span, made=operation if draft.known else None, dtype=dtype, grad=grad,
            shape=draft.shape, traits=draft.traits, reference=None if draft.known else operation,
        )  # fmt: skip

    def text_of(self, node: ast.expr) -> str:
        """The source of a one-line expression (the first line of a longer one)."""
        if not 0 < node.lineno <= len(self.lines):
            return ""
        line = self.lines[node.lineno - 1]
        same = node.end_lineno == node.lineno
        if line.isascii():
            return line[node.col_offset : node.end_col_offset if same else None].strip()
        raw = line.encode("utf-8", "surrogatepass")
        return raw[node.col_offset : node.end_col_offset if same else None].decode("utf-8", "replace").strip()
