"""The abstract interpreter's expressions: what is known of the value of each one."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from stayfinite.findings.subjects.source_file import INF, Operation, Value
from stayfinite.readers.source import intervals, transfer
from stayfinite.readers.source.intervals import Span
from stayfinite.readers.source.names import dotted, resolve, variables
from stayfinite.readers.source.scope import (
    MASK_UNKNOWN,
    NONE,
    POSITIVE_UNKNOWN,
    UNKNOWN,
    ClassFacts,
    Scope,
    Sight,
)
from stayfinite.readers.source.transfer import Draft, span_of
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
_FOLD: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
}
_COMBINED: dict[str, Callable[[Span, Span], Span]] = {
    "add": intervals.add,
    "sub": intervals.subtract,
    "mul": intervals.multiply,
    "div": intervals.divide,
}
_EDGE_TRAITS = frozenset({"most_negative", "minus_infinity", "holds_nan"})


class Evaluator:
    """Evaluates expressions in a scope. Calls are in calls.py, statements in statements.py."""

    def __init__(self, lines: Sequence[str], imported: dict[str, str]) -> None:
        self.lines = lines
        self.imported = imported
        self.sight = Sight()
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.classes: dict[str, ClassFacts] = {}
        self.scope = Scope()
        self.globals: dict[str, Value] = {}
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

    # ---- operations -------------------------------------------------------------------------------------------

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
        if node.attr in ("T", "mT", "H", "data", "real"):
            return inner
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
        return (
            POSITIVE_UNKNOWN
            if EPS_NAME.search(attribute)
            else (MASK_UNKNOWN if MASK_NAME.search(attribute) else UNKNOWN)
        )

    # ---- arithmetic -------------------------------------------------------------------------------------------

    def _binary(self, node: ast.BinOp) -> Value:
        name = _OPERATORS.get(type(node.op))
        if name is None:
            return UNKNOWN
        return self.arithmetic(
            node, name, self.evaluate(node.left), self.evaluate(node.right), node.left, node.right
        )

    def arithmetic(
        self,
        node: ast.expr,
        name: str,
        left: Value,
        right: Value,
        left_node: ast.expr,
        right_node: ast.expr,
        style: str = "operator",
    ) -> Value:
        """An arithmetic operation, as operator or as function."""
        a, b = left.number, right.number
        if a is not None and b is not None and name in _FOLD:
            try:
                return number(_FOLD[name](a, b))
            except (ArithmeticError, ValueError, TypeError):
                return UNKNOWN
        if name == "pow":
            keep = True
            operation = self.record(node, "pow", (left, right), style=style, keep=keep)
            return self.result(transfer.pow_((left, right), {}), operation, (left, right))
        if name in ("and", "or"):
            masks = left.kind == "mask" or right.kind == "mask"
            return (
                Value("mask", 0.0, 1.0, made=left.made or right.made, traits=left.traits | right.traits)
                if masks
                else UNKNOWN
            )
        if name in ("floordiv", "mod"):
            return UNKNOWN
        special = self._special(node, name, left, right, left_node, right_node)
        if special is not None:
            return special
        both_sides = (left.known or a is not None or left.has("eps")) and (
            right.known or b is not None or right.has("eps")
        )
        interesting = (name == "div" and right.known) or (
            name == "add" and left.has("most_negative") and right.has("most_negative")
        )
        if not both_sides and not interesting:
            return self._untraced(node, name, left, right)
        spans = span_of(left), span_of(right)
        combined = _COMBINED[name](*spans) if name in _COMBINED else intervals.ANY
        traits = _arithmetic_traits(name, left, right)
        operation = self.record(node, name, (left, right), style=style, keep=interesting)
        numbers = left.kind == "number" and right.kind == "number"
        if (
            name == "add"
            and left.has("square")
            and right.has("square")
            and not _differences(left_node, right_node)
        ):
            combined = combined._replace(
                low_open=True
            )  # sigma**2 + data**2: that both are 0 is not to be expected
        shape = left.shape if left.shape is not None else right.shape
        draft = Draft(
            combined,
            "number" if numbers else "tensor",
            traits,
            known=both_sides and name != "matmul" and (left.known or right.known),
            shape=shape,
        )
        return self.result(draft, operation, (left, right))

    def _untraced(self, node: ast.expr, name: str, left: Value, right: Value) -> Value:
        """One side is unknown: the interval is lost, dtype and the flow of gradients are not."""
        if name == "div" and self.scope.selecting and right.number is None:
            operation = self.record(node, "div", (left, right), style="operator", keep=False)
            return Value(
                "tensor",
                dtype=transfer.dtype_of((left, right)),
                reference=replace(operation, text=self.text_of(node)),
            )
        tensors = [value for value in (left, right) if value.kind not in ("number", "none")]
        grad = True if any(value.grad for value in tensors) else None
        traits: frozenset[str] = (left.traits | right.traits) & _EDGE_TRAITS
        dtype = transfer.dtype_of((left, right))
        if name == "matmul":
            operation = self.record(node, "matmul", (left, right), style="operator", keep=False)
            return Value("tensor", made=None, dtype=dtype, grad=grad, reference=operation)
        if grad is None and not traits and dtype is None:
            return UNKNOWN
        return Value("tensor", dtype=dtype, grad=grad, traits=traits)

    def _special(
        self,
        node: ast.expr,
        name: str,
        left: Value,
        right: Value,
        left_node: ast.expr,
        right_node: ast.expr,
    ) -> Value | None:
        """Forms whose meaning lies in both sides being the same thing."""
        if name == "sub":
            span_of_one = _reduces(left_node, ("max", "amax")) and _reduces(right_node, ("min", "amin"))
            if span_of_one and _same(_receiver(left_node), _receiver(right_node)):
                operation = self.record(node, "range", (left, right), style="operator", keep=False)
                drafted = Draft(intervals.NOT_NEGATIVE, traits=frozenset({"range"}))
                return self.result(drafted, operation, (left, right))
            if right.has("maximum") or (
                _reduces(right_node, ("max", "amax")) and _same(left_node, _receiver(right_node))
            ):
                return Value(
                    "tensor", -INF, 0.0, made=left.made or right.made, dtype=left.dtype, grad=left.grad,
                    traits=frozenset({"shifted"}),
                )  # fmt: skip
        if name == "mul" and _same(left_node, right_node):
            operation = self.record(node, "square", (left,), style="operator", keep=False)
            draft = Draft(intervals.power(span_of(left), 2), traits=frozenset({"square"}))
            return self.result(draft, operation, (left,))
        if name == "matmul" and (
            _same(left_node, _transposed(right_node)) or _same(_transposed(left_node), right_node)
        ):
            operation = self.record(node, "gram", (left, right), style="operator", keep=False)
            return self.result(
                Draft(intervals.ANY, traits=frozenset({"gram"}), known=True), operation, (left, right)
            )
        return None

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
        for comparator in node.comparators:
            self.evaluate(comparator)
        if any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
            return UNKNOWN
        operation = self.record(node, "compare", (left,), style="operator", keep=False)
        return Value("mask", 0.0, 1.0, made=operation, grad=False)

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


def number(value: float) -> Value:
    """A number that is written in the source."""
    if isinstance(value, complex):
        return UNKNOWN
    plain = float(value) if abs(value) < 1e300 else math.copysign(INF, value)
    traits = frozenset({"holds_nan"}) if math.isnan(plain) else frozenset()
    low, high = (-INF, INF) if math.isnan(plain) else (plain, plain)
    return Value(kind="number", low=low, high=high, const=value, traits=traits)


def join(a: Value, b: Value) -> Value:
    """Either of two values."""
    if a is b:
        return a
    if a.kind == "none":
        return b
    if b.kind == "none":
        return a
    a_knows, b_knows = (value.known or value.number is not None for value in (a, b))
    if not (a_knows and b_knows):
        half = a.dtype if a.dtype == b.dtype else None
        if a.kind == b.kind and a.kind in ("module", "optimizer", "scaler", "scheduler"):
            return a
        traits = a.traits & b.traits
        if half is None and not traits and not (a.grad or b.grad):
            return UNKNOWN
        return Value("tensor", dtype=half, traits=traits, grad=True if a.grad or b.grad else None)
    span = intervals.hull(span_of(a), span_of(b))
    numbers = a.kind == "number" and b.kind == "number"
    return Value(
        "number" if numbers else "tensor", *span, made=a.made or b.made,
        const=a.const if a.const == b.const else None,
        dtype=a.dtype if a.dtype == b.dtype else None, grad=a.grad or b.grad,
        traits=a.traits & b.traits | ((a.traits | b.traits) & _EDGE_TRAITS),
    )  # fmt: skip


def element_of(value: Value) -> Value:
    """What a loop over the value hands out."""
    if value.items:
        joined = value.items[0]
        for item in value.items[1:]:
            joined = join(joined, item)
        return joined
    if value.kind in ("tensor", "mask"):
        return replace(value, shape=None)
    return UNKNOWN


def _arithmetic_traits(name: str, left: Value, right: Value) -> frozenset[str]:
    both = left.traits | right.traits
    kept: set[str] = set(both & _EDGE_TRAITS)
    if name == "mul":
        if left.low >= 0 and right.low >= 0 and left.has("probability") and right.has("probability"):
            kept.add("probability_product")
        if left.kind == "mask" or right.kind == "mask":
            kept.add("masked")
        kept |= both & {"probability_product", "square", "class_counts", "count", "zero_rows"}
    elif name == "div":
        kept |= left.traits & {
            "probability_product",
            "square",
            "class_counts",
            "count",
            "shifted",
            "probability",
            "deviation",
            "logit",
        }
    elif name in ("add", "sub"):
        other = right if left.traits else left
        if other.number is not None or other.has("eps"):
            kept |= both & {"square", "count", "deviation", "class_counts", "norm", "range"}
        if name == "add" and left.has("square") and right.has("square"):
            kept.add("square")
        if name == "add" and (left.has("gram") or right.has("gram")):
            kept.add("loaded")
        if name == "sub" and left.number == 1 and right.has("probability"):
            kept.add("complement")
        if name == "sub" and left.number == 1 and right.has("saturating"):
            kept.add("complement")
    return frozenset(kept)


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


def _differences(*nodes: ast.expr) -> bool:
    return any(isinstance(inner, ast.Sub) for node in nodes for inner in ast.walk(node))


def _reduces(node: ast.expr, names: tuple[str, ...]) -> bool:
    while isinstance(node, ast.Attribute) and node.attr == "values":
        node = node.value
    while (
        isinstance(node, ast.Subscript)
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("detach", "unsqueeze")
        )
        or (isinstance(node, ast.Attribute) and node.attr == "values")
    ):
        node = node.func.value if isinstance(node, ast.Call) else node.value  # type: ignore[attr-defined]
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def _receiver(node: ast.expr) -> ast.expr | None:
    """`x` of x.max(...)[0] and of torch.max(x, ...)."""
    while True:
        if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "values"):
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("detach", "unsqueeze")
        ):
            node = node.func.value
        else:
            break
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    if isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "np"):
        return node.args[0] if node.args else None
    return node.func.value


def _transposed(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        return node.value
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("t", "transpose")
    ):
        return node.func.value
    return None


def _same(a: ast.expr | None, b: ast.expr | None) -> bool:
    """The same expression, written twice."""
    if a is None or b is None or type(a) is not type(b):
        return False
    if isinstance(a, ast.Name) and isinstance(b, ast.Name):
        return a.id == b.id
    if isinstance(a, (ast.Constant, ast.UnaryOp)):
        return False
    return ast.dump(a) == ast.dump(b)


__all__ = ["Evaluator", "Span", "element_of", "join", "number"]
