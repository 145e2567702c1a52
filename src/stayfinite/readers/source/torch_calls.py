"""Calls of torch: functions of tensors, tensor methods, layers and parameters that the file builds."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import replace

from stayfinite.findings.subjects.source_file import INF, Value
from stayfinite.readers.source import intervals
from stayfinite.readers.source.expressions import Evaluator
from stayfinite.readers.source.layers import Layer
from stayfinite.readers.source.names import torch_function
from stayfinite.readers.source.scope import POSITIVE_UNKNOWN, UNKNOWN
from stayfinite.readers.source.transfer import TRANSFERS, Draft
from stayfinite.readers.source.values import element_of, without_gradient
from stayfinite.readers.source.vocabulary import DISTRIBUTIONS_WITH_SCALE, KEEPS, OPTIMIZERS, PIECES, WATCHED

_SCATTERS = frozenset(
    [
        "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter", "scatter_", "index_copy",
        "index_copy_",
    ]
)  # fmt: skip
_REDUCES_MAXIMUM = frozenset(
    ["scatter_reduce", "scatter_reduce_", "scatter_max", "segment_max", "index_reduce"]
)
_ARITHMETIC = {
    "add": "add",
    "sub": "sub",
    "subtract": "sub",
    "mul": "mul",
    "multiply": "mul",
    "div": "div",
    "divide": "div",
    "true_divide": "div",
    "matmul": "matmul",
    "mm": "matmul",
    "bmm": "matmul",
}


class TorchCaller(Evaluator):
    """Evaluates calls into torch."""

    def arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        args = [self.evaluate(argument) for argument in node.args]
        options = {keyword.arg or "**": self.evaluate(keyword.value) for keyword in node.keywords}
        return args, options

    def _selected_arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        """Of torch.where(condition, a, b): a and b are only used where the condition says so."""
        if len(node.args) != 3:
            return self.arguments(node)
        condition, before = self.evaluate(node.args[0]), self.scope.selecting
        self.scope.selecting = before | self.tested(node.args[0])
        branches = [self.evaluate(branch) for branch in node.args[1:]]
        self.scope.selecting = before
        return [condition, *branches], {}

    # ---- torch ------------------------------------------------------------------------------------------------

    def torch_call(self, node: ast.Call, full: str) -> Value:
        last = torch_function(full)
        if last is None:
            self.arguments(node)
            return UNKNOWN
        if full.startswith("torch.nn.") and last[:1].isupper() and "functional" not in full:
            return self._build(node, last)
        if last in ("autocast", "GradScaler") or last in OPTIMIZERS or "lr_scheduler" in full:
            args, options = self.arguments(node)
            operation = self.record(
                node, last, args, options, style="function", keep=last in WATCHED or "lr_scheduler" in full
            )
            usual = "scheduler" if "lr_scheduler" in full else "optimizer"
            kind = {"autocast": "autocast", "GradScaler": "scaler"}.get(last, usual)
            return Value(kind=kind, made=operation)
        if full.startswith("torch.distributions"):
            args, options = self.arguments(node)
            self.record(node, last, args, options, style="function", keep=last in DISTRIBUTIONS_WITH_SCALE)
            return Value(kind="distribution")
        args, options = self._selected_arguments(node) if last == "where" else self.arguments(node)
        if not args:
            given = options.get("input") or options.get("tensor")
            if given is not None:
                args = [given]
        return self.apply(node, last, args, options, "function")

    def _build(self, node: ast.Call, name: str) -> Value:
        """A layer or parameter."""
        args, options = self.arguments(node)
        if name == "Buffer":
            return args[0] if args else UNKNOWN
        if name == "Parameter":
            operation = self.record(node, name, args, options, style="function", keep=True)
            first = args[0] if args else UNKNOWN
            fixed = options.get("requires_grad")
            grad = not (fixed is not None and fixed.const is False)
            if first.known and first.low == first.high == 0.0 and grad:
                return Value(
                    "tensor", made=operation, grad=True, traits=frozenset({"starts_at_zero", "parameter"})
                )
            traits = frozenset({"parameter"}) | (first.traits & {"identity"})
            return Value("tensor", grad=grad or None, traits=traits, dtype=first.dtype)
        parts: tuple[Layer, ...] = ()
        if name == "Sequential":
            references = [value.reference for value in args]
            parts = tuple(reference for reference in references if isinstance(reference, Layer))
            if len(parts) != len(references) or not parts:
                return Value(
                    kind="module", reference=Layer("Sequential", parts=(Layer("unknown"),)), grad=True
                )
        layer = Layer(name, tuple(args), options, parts)
        if name in WATCHED:
            self.record(node, name, args, options, style="function", keep=True)
        return Value(kind="module", reference=layer, grad=True)

    def apply(
        self, node: ast.expr, name: str, args: list[Value], options: dict[str, Value], style: str
    ) -> Value:
        """A function of tensors, as torch.f(x) or x.f()."""
        if name in _ARITHMETIC and len(args) > 1 and isinstance(node, ast.Call):
            nodes = self._operand_nodes(node, style)
            if len(nodes) == 2 and not options:
                return self.arithmetic(node, _ARITHMETIC[name], args[0], args[1], nodes[0], nodes[1], style)
        if name == "tensor":
            return self._literal(node, args, options)
        if name == "finfo":
            return Value(kind="finfo", made=self.record(node, name, args, options, style=style, keep=False))
        if name in ("cat", "stack", "concat", "hstack", "vstack"):
            return element_of(args[0]) if args else UNKNOWN
        if name in KEEPS:
            return self._kept(name, args)
        if name == "item":
            return Value("number", grad=False)
        if name == "detach":
            return without_gradient(args[0]) if args else UNKNOWN
        if name in ("to", "type", "half", "bfloat16", "type_as", "astype"):
            return self.cast(node, name, args, options, style)
        if name in PIECES or name in ("topk", "sort", "kthvalue"):
            return replace(args[0], shape=None, const=None) if args and args[0] is not UNKNOWN else UNKNOWN
        if name in ("max", "min"):
            name = "maximum" if name == "max" else "minimum"
            args = [
                value for value in args if value.kind in ("tensor", "mask") or value.has("named_mask")
            ] or args[:1]
        if name in ("isfinite", "isnan", "isinf", "eq", "ne", "gt", "lt", "ge", "le", "bool"):
            operation = self.record(node, "compare", args, options, style=style, keep=False)
            return Value("mask", 0.0, 1.0, made=operation, grad=False)
        if name in ("numel", "size", "__len__", "nelement"):
            return POSITIVE_UNKNOWN if len(args) > 1 or name != "size" else UNKNOWN
        if name in ("int", "long") and args:
            return args[0]
        if name in _SCATTERS:
            operation = self.record(node, name, args, options, style=style, keep=False)
            return self.result(
                Draft(
                    intervals.NOT_NEGATIVE if args and args[-1].low >= 0 else intervals.ANY,
                    known=bool(args) and args[-1].known,
                ),
                operation,
                args,
            )
        if name in _REDUCES_MAXIMUM:
            return Value("tensor", traits=frozenset({"maximum"}))
        return self._transferred(node, name, args, options, style)

    def _transferred(
        self, node: ast.expr, name: str, args: list[Value], options: dict[str, Value], style: str
    ) -> Value:
        rule = TRANSFERS.get(name)
        if rule is None:
            if name in WATCHED:
                operation = self.record(node, name, args, options, style=style, keep=True)
                return Value(
                    "tensor", grad=True if any(value.grad for value in args) else None, reference=operation
                )
            grad = True if any(value.grad for value in args) else None
            return Value("tensor", grad=grad) if grad else UNKNOWN
        operation = self.record(node, name, args, options, style=style, keep=name in WATCHED)
        draft = rule(args, options)
        if name in ("zeros", "ones", "full", "rand", "randn", "randint", "empty", "eye"):
            draft.shape = _shape(args, name)
            asked = options.get("requires_grad")
            draft.grad = asked is not None and asked.const is True
        elif name in ("rand_like", "randn_like"):
            draft.grad = False  # fresh noise, whatever it is shaped like
        dtype = options.get("dtype")
        if dtype is not None and dtype.kind == "dtype":
            draft.dtype = str(dtype.const)
        elif name in ("linear", "matmul", "bmm", "conv1d", "conv2d") and self.scope.autocast:
            draft.dtype = self.scope.autocast
        value = self.result(draft, operation, args)
        if draft.shape is None and name in ("relu", "tanh", "sigmoid", "abs") and args:
            value = replace(value, shape=args[0].shape)
        return value

    def _kept(self, name: str, args: list[Value]) -> Value:
        value = args[0] if args else UNKNOWN
        if name == "numpy":
            value = without_gradient(value)
        if value is UNKNOWN:
            return UNKNOWN
        if name in ("float", "double"):
            traits = value.traits | ({"from_mask"} if value.kind == "mask" else frozenset())
            return replace(value, dtype="float32", traits=traits)
        if name == "requires_grad_":
            return replace(value, grad=True)
        return replace(value, shape=None, const=None)

    def cast(
        self, node: ast.expr, name: str, args: list[Value], options: dict[str, Value], style: str
    ) -> Value:
        value = args[0] if args else UNKNOWN
        dtype: str | None = {"half": "float16", "bfloat16": "bfloat16"}.get(name)
        if dtype is None:
            given = [*args[1:], *options.values()]
            dtype = next((str(item.const) for item in given if item.kind == "dtype"), None)
        if dtype is None:
            return value if name != "type_as" else replace(value, const=None)
        if dtype in ("float16", "bfloat16"):
            operation = self.record(
                node, "cast", [value], {"dtype": Value(kind="dtype", const=dtype)}, style=style, keep=True
            )
            if value.kind in ("module", "instance"):
                return replace(value, dtype=dtype, made=operation)
            if value is UNKNOWN or value.kind == "unknown":
                return Value("tensor", dtype=dtype, reference=operation, traits=frozenset({"cast"}))
            return replace(
                value, dtype=dtype, kind="tensor", reference=operation, traits=value.traits | {"cast"}
            )
        return replace(value, dtype=dtype) if value is not UNKNOWN else UNKNOWN

    def _literal(self, node: ast.expr, args: list[Value], options: dict[str, Value]) -> Value:
        numbers = _numbers(args[0]) if args else []
        operation = self.record(node, "tensor", args, options, style="function", keep=False)
        asked = options.get("requires_grad")
        grad = asked is not None and asked.const is True
        dtype = options.get("dtype")
        named = str(dtype.const) if dtype is not None and dtype.kind == "dtype" else None
        if not numbers:
            return Value("tensor", grad=grad, dtype=named, reference=args[0] if args else None)
        finite = [value for value in numbers if not math.isnan(value)]
        traits = {"literal"} | ({"holds_nan"} if len(finite) < len(numbers) else set())
        shape = _literal_shape(args[0])
        boolean = all(isinstance(item, bool) for item in _constants(args[0]))
        return Value(
            "mask" if boolean else "tensor", min(finite, default=-INF), max(finite, default=INF), made=operation,
            grad=grad, dtype=named,
            traits=frozenset(traits), shape=shape, items=args[0].items, reference=args[0],
        )  # fmt: skip

    @staticmethod
    def _operand_nodes(node: ast.Call, style: str) -> list[ast.expr]:
        if style == "method" and isinstance(node.func, ast.Attribute):
            return [node.func.value, *node.args]
        return list(node.args)


def _shape(args: Sequence[Value], name: str) -> tuple[int | None, ...] | None:
    given: Sequence[Value] = args
    if name == "randint":
        given = args[-1:]
    if name == "full":
        given = args[:1]
    if len(given) == 1 and given[0].kind == "tuple" and given[0].items is not None:
        given = given[0].items
    sizes = [value.number for value in given if value.kind == "number" or value.kind == "unknown"]
    if len(sizes) != len(given) or not sizes:
        return None
    return tuple(int(size) if size is not None and abs(size) < 1e12 else None for size in sizes)


def _numbers(value: Value) -> list[float]:
    """All numbers of a nested literal; empty where something in it is not written down."""
    if value.number is not None:
        return [value.number]
    if value.kind == "bool":
        return [float(bool(value.const))]
    if value.kind == "number" and value.has("holds_nan"):
        return [math.nan]
    if value.kind == "tuple" and value.items is not None:
        found: list[float] = []
        for item in value.items:
            inner = _numbers(item)
            if not inner:
                return []
            found += inner
        return found
    return []


def _constants(value: Value) -> list[object]:
    return [inner for item in value.items for inner in _constants(item)] if value.items else [value.const]


def _literal_shape(value: Value) -> tuple[int | None, ...]:
    shape: list[int | None] = []
    while value.kind == "tuple" and value.items:
        shape.append(len(value.items))
        value = value.items[0]
    return tuple(shape)
