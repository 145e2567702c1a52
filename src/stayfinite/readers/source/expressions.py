"""The abstract interpreter's expressions: what is known of the value of each one."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from stayfinite.findings.subjects.source_file import INF, Value
from stayfinite.readers.source import intervals
from stayfinite.readers.source.arithmetic import Arithmetic
from stayfinite.readers.source.names import dotted, resolve, variables
from stayfinite.readers.source.scope import MASK_UNKNOWN, NONE, POSITIVE_UNKNOWN, UNKNOWN, ClassFacts
from stayfinite.readers.source.transfer import span_of
from stayfinite.readers.source.values import element_of, join, number, without_gradient
from stayfinite.readers.source.vocabulary import EPS_NAME, FULL, HALF, MASK_NAME

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.BitAnd: "and",
    ast.BitOr: "or",
}


class Evaluator(Arithmetic):
    """Evaluates expressions in a scope. Calls are in calls.py, statements in statements.py."""

    def __init__(self, lines: Sequence[str], imported: dict[str, str]) -> None:
        super().__init__(lines, imported)
        self._handlers: dict[type[ast.expr], Callable[..., Value]] = {
            ast.Constant: self._constant,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: self.call,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.Compare: self._compare,
            ast.BoolOp: self._boolean,
            ast.IfExp: self._conditional,
            ast.Subscript: self._subscript,
            ast.Tuple: self._sequence,
            ast.List: self._sequence,
            ast.Starred: lambda node: self.evaluate(node.value),
            ast.NamedExpr: self._walrus,
            ast.ListComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.Dict: self._dictionary,
            ast.Yield: lambda node: self.evaluate(node.value),
            ast.YieldFrom: lambda node: self.evaluate(node.value),
            ast.Await: lambda node: self.evaluate(node.value),
        }

    def call(self, node: ast.Call) -> Value:
        raise NotImplementedError

    def evaluate(self, node: ast.expr | None) -> Value:
        """What is known of an expression; UNKNOWN for what the interpreter does not follow."""
        if node is None:
            return UNKNOWN
        handler = self._handlers.get(type(node))
        if handler is None:
            return UNKNOWN
        return handler(node)

    # ---- leaves -----------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Value:
        value = node.value
        if isinstance(value, bool):
            return Value(kind="bool", const=value, low=float(value), high=float(value))
        if isinstance(value, (int, float)):
            return number(value)
        if value is None:
            return NONE
        return Value(kind="text", const=value) if isinstance(value, str) else UNKNOWN

    def _name(self, node: ast.Name) -> Value:
        return self.lookup(node.id)

    def lookup(self, name: str) -> Value:
        found = self.scope.variables.get(name)
        if found is None:
            found = self.globals.get(name, UNKNOWN)
        if found is UNKNOWN or (found.kind == "unknown" and not found.known and not found.traits):
            last = name.rpartition(".")[2]
            if EPS_NAME.search(last):
                return POSITIVE_UNKNOWN
            if MASK_NAME.search(last) and found.made is None:
                return MASK_UNKNOWN
        return found

    def _attribute(self, node: ast.Attribute) -> Value:
        name = dotted(node)
        if name is not None:
            found = self.scope.variables.get(name)
            if found is not None:
                return found
            full = resolve(name, self.imported)
            if full is not None:
                return _library_constant(full, node.attr)
            if self.scope.owner is not None and name.startswith("self.") and name.count(".") == 1:
                return self.attribute_of(self.scope.owner, node.attr)
        inner = self.evaluate(node.value)
        if node.attr in ("T", "mT", "H", "real"):
            return inner
        if node.attr == "data":
            return without_gradient(inner)
        if node.attr == "grad" and not any("create_graph" in line for line in self.lines):
            return Value("tensor", grad=False)
        if (
            node.attr in ("min", "tiny", "eps", "max", "smallest_normal")
            and inner.kind == "finfo"
            and inner.made
        ):
            if node.attr == "min":
                return Value(
                    "number", -3.4e38, -65504.0, made=inner.made, traits=frozenset({"most_negative"})
                )
            return POSITIVE_UNKNOWN
        if name is not None:
            return self.lookup(name)
        if EPS_NAME.search(node.attr):
            return POSITIVE_UNKNOWN
        return UNKNOWN

    def attribute_of(self, owner: ClassFacts, attribute: str) -> Value:
        found = owner.attributes.get(attribute)
        if found is not None and not (found.kind == "unknown" and not found.known):
            return found
        if EPS_NAME.search(attribute):
            return POSITIVE_UNKNOWN
        return MASK_UNKNOWN if MASK_NAME.search(attribute) else UNKNOWN

    # ---- arithmetic -------------------------------------------------------------------------------------------

    def _binary(self, node: ast.BinOp) -> Value:
        name = _OPERATORS.get(type(node.op))
        if name is None:
            return UNKNOWN
        return self.arithmetic(
            node, name, self.evaluate(node.left), self.evaluate(node.right), node.left, node.right
        )

    def _unary(self, node: ast.UnaryOp) -> Value:
        inner = self.evaluate(node.operand)
        if isinstance(node.op, ast.USub):
            if inner.number is not None:
                return number(-inner.number if not isinstance(inner.const, int) else -inner.const)
            span = intervals.negate(span_of(inner))
            return replace(
                inner, low=span[0], high=span[1], low_open=span[2], high_open=span[3], const=None,
                traits=inner.traits & {"named", "shifted"} if not inner.has("shifted") else frozenset(),
            )  # fmt: skip
        if isinstance(node.op, ast.Invert):
            return inner if inner.kind == "mask" or inner.has("named_mask") else UNKNOWN
        return UNKNOWN if isinstance(node.op, ast.Not) else inner

    def _compare(self, node: ast.Compare) -> Value:
        left = self.evaluate(node.left)
        right = [self.evaluate(comparator) for comparator in node.comparators][-1]
        if any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
            return UNKNOWN
        operation = self.record(node, "compare", (left,), {"right": right}, style="operator", keep=False)
        return Value("mask", 0.0, 1.0, made=replace(operation, text=self.text_of(node)), grad=False)

    def _boolean(self, node: ast.BoolOp) -> Value:
        """`a and b`: b is only reached where a holds, so a guards it."""
        before = self.scope.guards
        joined: Value | None = None
        for part in node.values:
            value = self.evaluate(part)
            joined = value if joined is None else join(joined, value)
            self.scope.guards = self.scope.guards | self.tested(part)
        self.scope.guards = before
        return joined or UNKNOWN

    def _conditional(self, node: ast.IfExp) -> Value:
        self.evaluate(node.test)
        before = self.scope.guards
        self.scope.guards = before | self.tested(node.test)
        first, second = self.evaluate(node.body), self.evaluate(node.orelse)
        self.scope.guards = before
        return join(first, second)

    def tested(self, test: ast.expr) -> frozenset[str]:
        """The variables whose size a test speaks of (`is None`, types and dimensions do not count)."""
        found: set[str] = set()
        stack: list[ast.AST] = [test]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Compare) and any(
                isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops
            ):
                continue
            if isinstance(node, ast.Call) and dotted(node.func) in (
                "isinstance",
                "hasattr",
                "callable",
                "getattr",
            ):
                continue
            if isinstance(node, ast.Compare) and any(
                isinstance(side, ast.Constant) and isinstance(side.value, str)
                for side in (node.left, *node.comparators)
            ):
                continue
            if isinstance(node, ast.Attribute) and node.attr in ("dtype", "ndim", "device", "is_cuda"):
                continue
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("dim", "is_floating_point")
            ):
                continue
            if isinstance(node, (ast.Name, ast.Attribute)):
                for name in variables(node):
                    found.add(name)
                    value = self.scope.variables.get(name)
                    if value is not None and value.made is not None:
                        found |= value.made.names
                continue
            stack.extend(ast.iter_child_nodes(node))
        return frozenset(found)

    # ---- containers -------------------------------------------------------------------------------------------

    def _sequence(self, node: ast.Tuple | ast.List) -> Value:
        items = tuple(self.evaluate(item) for item in node.elts)
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return Value(kind="tuple", items=items[:1] if len(items) == 1 else None)
        return Value(kind="tuple", items=items)

    def _dictionary(self, node: ast.Dict) -> Value:
        for value in node.values:
            self.evaluate(value)
        return Value(kind="dict")

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
        before, guards = dict(self.scope.variables), self.scope.guards
        for generator in node.generators:
            self.bind_loop(generator.target, generator.iter)
            for test in generator.ifs:
                self.evaluate(test)
                self.scope.guards = self.scope.guards | self.tested(test)
        element = self.evaluate(node.elt)
        self.scope.variables, self.scope.guards = before, guards
        return Value(kind="list", items=(element,))

    def bind_loop(self, target: ast.expr, iterable: ast.expr) -> None:
        value = self.evaluate(iterable)
        if isinstance(iterable, ast.Call) and dotted(iterable.func) in ("enumerate", "zip", "reversed"):
            sources = [element_of(self.evaluate(argument)) for argument in iterable.args]
            if dotted(iterable.func) == "enumerate" and sources:
                sources = [UNKNOWN, sources[0]]
            if isinstance(target, ast.Tuple) and len(target.elts) == len(sources):
                for part, source in zip(target.elts, sources, strict=True):
                    self.assign(part, source)
                return
        self.assign(target, element_of(value))

    def assign(self, target: ast.expr, value: Value) -> None:
        raise NotImplementedError

    def _subscript(self, node: ast.Subscript) -> Value:
        value = self.evaluate(node.value)
        index = node.slice
        if isinstance(index, ast.Constant) and isinstance(index.value, int) and value.items is not None:
            if -len(value.items) <= index.value < len(value.items):
                return value.items[index.value]
            return value.items[0] if value.kind == "list" and value.items else UNKNOWN
        if value.kind in ("tuple", "list"):
            return value
        picked = self.evaluate(index) if not isinstance(index, ast.Slice) else UNKNOWN
        if value.kind == "dict" or (value is UNKNOWN and picked.kind == "text"):
            return UNKNOWN
        traits, shape = value.traits, None
        if picked.kind == "mask":
            traits = (traits - {"zero_rows"}) | {"picked"}
        if isinstance(index, ast.Slice) and _moving_slice(index):
            traits |= {"slice"}
            if value is UNKNOWN or value.kind == "unknown":
                return Value(kind="tensor", traits=frozenset({"slice"}))
        if value is UNKNOWN:
            return Value(kind="tensor", traits=frozenset({"picked"})) if picked.kind == "mask" else UNKNOWN
        return replace(value, traits=traits, shape=shape, const=None)

    def _walrus(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.assign(node.target, value)
        return value


def _library_constant(full: str, attribute: str) -> Value:
    if full.startswith(("torch.", "numpy.", "math.")):
        if attribute in HALF or attribute in FULL:
            return Value(kind="dtype", const=HALF.get(attribute) or FULL[attribute])
        if attribute == "inf":
            return number(INF)
        if attribute == "nan":
            return number(math.nan)
        if attribute == "pi":
            return number(math.pi)
        if attribute == "e":
            return number(math.e)
    return UNKNOWN


def _moving_slice(index: ast.Slice) -> bool:
    """`x[i : i + n]`: both ends are computed, so the last piece may be shorter than the others."""
    return all(part is not None and not isinstance(part, ast.Constant) for part in (index.lower, index.upper))
