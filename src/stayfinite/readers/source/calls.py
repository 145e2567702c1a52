"""The abstract interpreter's calls: torch functions, tensor methods, layers, and functions of the same file."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import replace

from stayfinite.findings.subjects.source_file import INF, Operation, Value
from stayfinite.readers.source import intervals
from stayfinite.readers.source.expressions import Evaluator, element_of, join, number
from stayfinite.readers.source.intervals import Span
from stayfinite.readers.source.layers import Layer, output
from stayfinite.readers.source.names import dotted, resolve, torch_function
from stayfinite.readers.source.scope import POSITIVE_UNKNOWN, UNKNOWN, ClassFacts, Scope
from stayfinite.readers.source.transfer import TRANSFERS, Draft, maximum, minimum
from stayfinite.readers.source.vocabulary import (
    DISTRIBUTIONS_WITH_SCALE,
    KEEPS,
    OPTIMIZERS,
    PIECES,
    WATCHED,
)

_DEPTH = 3
_MOST_INLINED = 300
_SCATTERS = frozenset(
    [
        "index_add",
        "index_add_",
        "scatter_add",
        "scatter_add_",
        "scatter",
        "scatter_",
        "index_copy",
        "index_copy_",
    ]
)
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


class Caller(Evaluator):
    """Evaluates calls."""

    _memory: dict[tuple[object, ...], Value]

    def call(self, node: ast.Call) -> Value:
        name = dotted(node.func)
        self.sight.calls.add(
            node.func.attr
            if isinstance(node.func, ast.Attribute)
            else (node.func.id if isinstance(node.func, ast.Name) else "")
        )
        if name is not None:
            full = resolve(name, self.imported)
            if full is not None:
                if full.startswith("torch"):
                    return self._torch(node, full)
                return self._other_library(node, full)
            if "." not in name:
                return self._local(node, name)
        return self._method(node)

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

    def _torch(self, node: ast.Call, full: str) -> Value:
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
            kind = (
                "autocast"
                if last == "autocast"
                else (
                    "scaler"
                    if last == "GradScaler"
                    else ("scheduler" if "lr_scheduler" in full else "optimizer")
                )
            )
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
        if name == "Parameter":
            operation = self.record(node, name, args, options, style="function", keep=True)
            first = args[0] if args else UNKNOWN
            fixed = options.get("requires_grad")
            grad = not (fixed is not None and fixed.const is False)
            if first.known and first.low == first.high == 0.0 and grad:
                return Value(
                    "tensor", made=operation, grad=True, traits=frozenset({"starts_at_zero", "parameter"})
                )
            return Value("tensor", grad=grad or None, traits=frozenset({"parameter"}), dtype=first.dtype)
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
            return self._kept(name, args, options)
        if name in ("detach",):
            return replace(args[0], grad=False) if args and args[0] is not UNKNOWN else UNKNOWN
        if name in ("to", "type", "half", "bfloat16", "type_as", "astype"):
            return self._cast(node, name, args, options, style)
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
        if name in ("zeros", "ones", "full", "rand", "randn", "randint", "empty"):
            draft.shape = _shape(args, options, name)
            asked = options.get("requires_grad")
            draft.grad = asked is not None and asked.const is True
        dtype = options.get("dtype")
        if dtype is not None and dtype.kind == "dtype":
            draft.dtype = str(dtype.const)
        elif name in ("linear", "matmul", "bmm", "conv1d", "conv2d") and self.scope.autocast:
            draft.dtype = self.scope.autocast
        value = self.result(draft, operation, args)
        if draft.shape is None and name in ("relu", "tanh", "sigmoid", "abs") and args:
            value = replace(value, shape=args[0].shape)
        return value

    def _kept(self, name: str, args: list[Value], options: dict[str, Value]) -> Value:
        value = args[0] if args else UNKNOWN
        if value is UNKNOWN:
            return UNKNOWN
        if name in ("float", "double"):
            kind = "tensor" if value.kind == "mask" else value.kind
            traits = value.traits | ({"from_mask"} if value.kind == "mask" else frozenset())
            return replace(
                value, dtype="float32", kind="mask" if value.kind == "mask" else kind, traits=traits
            )
        if name in ("requires_grad_",):
            return replace(value, grad=True)
        return replace(value, shape=None, const=None)

    def _cast(
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
            return Value("tensor", grad=grad or None, dtype=named, reference=args[0] if args else None)
        finite = [value for value in numbers if not math.isnan(value)]
        traits = {"literal"} | ({"holds_nan"} if len(finite) < len(numbers) else set())
        shape = _literal_shape(args[0])
        return Value(
            "tensor", min(finite, default=-INF), max(finite, default=INF), made=operation, grad=grad, dtype=named,
            traits=frozenset(traits), shape=shape, items=args[0].items, reference=args[0],
        )  # fmt: skip

    @staticmethod
    def _operand_nodes(node: ast.Call, style: str) -> list[ast.expr]:
        if style == "method" and isinstance(node.func, ast.Attribute):
            return [node.func.value, *node.args]
        return list(node.args)

    # ---- everything else --------------------------------------------------------------------------------------

    def _other_library(self, node: ast.Call, full: str) -> Value:
        args, _options = self.arguments(node)
        if full.startswith("math."):
            if len(args) == 1 and args[0].number is not None:
                function = getattr(math, full.rpartition(".")[2], None)
                try:
                    return number(float(function(args[0].number))) if callable(function) else UNKNOWN
                except (ValueError, OverflowError, TypeError):
                    return UNKNOWN
            return UNKNOWN
        if full in ("copy.deepcopy", "copy.copy") and args:
            return args[0]
        if full.startswith("einops.") and args:
            return (
                args[0]
                if full.endswith(("rearrange", "repeat"))
                else (
                    self.apply(node, "mean", args[:1], {}, "function") if full.endswith("reduce") else UNKNOWN
                )
            )
        return UNKNOWN

    def _local(self, node: ast.Call, name: str) -> Value:
        if name in self.functions and name not in self.scope.variables:
            return self.inline(node, self.functions[name], None, [])
        if name in self.classes:
            facts = self.classes[name]
            self.arguments(node)
            return Value(kind="instance", reference=facts)
        value = self.scope.variables.get(name) or self.globals.get(name)
        if value is not None and value.kind in ("module", "instance"):
            return self.call_module(node, value)
        args, options = self.arguments(node)
        if name in ("max", "min") and args:
            rule = maximum if name == "max" else minimum
            if len(args) > 1:
                operation = self.record(node, name, args, options, style="function", keep=False)
                drafted = rule(args, options)
                if not drafted.known and name == "max" and any(value.has("eps") for value in args):
                    drafted = Draft(intervals.POSITIVE, "number")
                return replace(self.result(drafted, operation, args), kind="number")
            return UNKNOWN
        if name == "len":
            return POSITIVE_UNKNOWN
        if name == "abs" and args:
            return self.apply(node, "abs", args, options, "function")
        if name in ("float", "int") and args:
            text = args[0].const
            if isinstance(text, str):
                try:
                    return number(float(text))
                except ValueError:
                    return UNKNOWN
            return args[0]
        if name == "sum" and args:
            return (
                self.apply(node, "sum", [element_of(args[0])], {}, "function") if args[0].items else UNKNOWN
            )
        if name == "range":
            return Value(kind="range", items=(Value(kind="number", traits=frozenset({"loop_index"})),))
        if name in ("list", "tuple", "reversed", "sorted", "iter", "next") and args:
            return args[0]
        return UNKNOWN

    def _method(self, node: ast.Call) -> Value:
        if not isinstance(node.func, ast.Attribute):
            inner = self.evaluate(node.func) if isinstance(node.func, ast.expr) else UNKNOWN
            if inner.kind in ("module", "instance"):
                return self.call_module(node, inner)
            self.arguments(node)
            return UNKNOWN
        method = node.func.attr
        owner = self.scope.owner
        base = node.func.value
        if isinstance(base, ast.Name) and base.id in ("self", "s", "cls") and owner is not None:
            if method in owner.methods:
                return self.inline(node, owner.methods[method], owner, [])
            value = self.scope.variables.get(f"{base.id}.{method}") or owner.attributes.get(method, UNKNOWN)
            if value.kind in ("module", "instance"):
                return self.call_module(node, value)
            self.arguments(node)
            return value if value.kind == "callable" else UNKNOWN
        receiver = self.evaluate(base)
        if receiver.kind in ("module", "instance"):
            return self._module_method(node, receiver, method)
        args, options = self.arguments(node)
        if receiver.kind in ("optimizer", "scaler", "scheduler"):
            self.record(node, method, [receiver, *args], options, style="method", keep=method in WATCHED)
            return UNKNOWN
        if receiver.kind in ("text", "dict", "distribution", "autocast"):
            return (
                Value("tensor", grad=True)
                if receiver.kind == "distribution" and method in ("rsample", "log_prob")
                else UNKNOWN
            )
        return self.apply(node, method, [receiver, *args], options, "method")

    def _module_method(self, node: ast.Call, receiver: Value, method: str) -> Value:
        args, options = self.arguments(node)
        if method in ("half", "bfloat16", "to"):
            return self._cast(node, method, [receiver, *args], options, "method")
        if method in ("float", "double"):
            return replace(receiver, dtype="float32", made=None)
        if method in ("cuda", "cpu", "train", "eval", "requires_grad_", "compile", "apply"):
            return receiver
        if method == "to_empty":
            operation = self.record(node, method, [receiver], options, style="method", keep=True)
            return replace(receiver, made=operation)
        if "param" in method or "trainable" in method:
            return Value(kind="parameters", dtype=receiver.dtype, made=receiver.made)
        if receiver.kind == "instance" and isinstance(receiver.reference, ClassFacts):
            target = receiver.reference.methods.get(method)
            if target is not None:
                return self.inline(node, target, receiver.reference, [])
        return UNKNOWN

    def call_module(self, node: ast.Call, module: Value) -> Value:
        """`net(x)`."""
        if module.kind == "instance" and isinstance(module.reference, ClassFacts):
            forward = module.reference.methods.get("forward") or module.reference.methods.get("__call__")
            if forward is not None:
                value = self.inline(node, forward, module.reference, [])
                return (
                    value
                    if value.known or value is not UNKNOWN
                    else Value("tensor", grad=True, dtype=module.dtype)
                )
            self.arguments(node)
            return UNKNOWN
        args, options = self.arguments(node)
        layer = module.reference
        if not isinstance(layer, Layer):
            return Value("tensor", grad=True, dtype=self.scope.autocast or module.dtype)
        if layer.name == "MultiheadAttention":
            self.record(node, "MultiheadAttention.call", args, options, style="function", keep=True)
            return UNKNOWN
        if layer.name.endswith("Loss"):
            name = {"CTCLoss": "ctc_loss", "BCELoss": "binary_cross_entropy", "CrossEntropyLoss": "cross_entropy",
                    "NLLLoss": "nll_loss", "KLDivLoss": "kl_div"}.get(layer.name)  # fmt: skip
            if name is not None:
                self.record(node, name, args, {**layer.options, **options}, style="function", keep=True)
            return Value("tensor", grad=True, traits=frozenset({"loss"}))
        draft = output(layer, args[0] if args else UNKNOWN, self.scope.autocast or module.dtype)
        operation = self.record(node, _layer_name(layer), args, options, style="function", keep=False)
        value = self.result(draft, operation, args)
        return replace(value, grad=not self.scope.no_grad)

    # ---- functions of the same file ---------------------------------------------------------------------------

    def inline(
        self,
        node: ast.Call,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        owner: ClassFacts | None,
        before: Sequence[Value],
    ) -> Value:
        """Follow a call into a function of this file, with what is known of its arguments."""
        args, options = self.arguments(node)
        informative = any(_informative(value) for value in (*args, *options.values()))
        if (
            not informative
            or self.scope.depth >= _DEPTH
            or self.sight.inlined >= _MOST_INLINED
            or any(isinstance(argument, ast.Starred) for argument in node.args)
        ):
            return UNKNOWN
        key = (
            id(function),
            *(_signature(value) for value in args),
            *((name, _signature(value)) for name, value in sorted(options.items())),
        )
        if key in self._memory:
            return self._memory[key]
        self._memory[key] = UNKNOWN  # of a recursive call nothing is known
        self.sight.inlined += 1
        if owner is not None:
            self.prepare(owner)
        variables = self.parameters_of(function, args, options, method=owner is not None)
        outer = self.scope
        self.scope = Scope(
            variables,
            function.name,
            owner,
            outer.depth + 1,
            no_grad=outer.no_grad,
            autocast=outer.autocast,
        )
        try:
            value = self.run(function)
        finally:
            self.scope = outer
        self._memory[key] = value
        return value

    def parameters_of(
        self,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        args: Sequence[Value],
        options: dict[str, Value],
        *,
        method: bool,
    ) -> dict[str, Value]:
        """Parameters -> values: given, else the default that is written down, else unknown."""
        spec = function.args
        names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
        static = any(dotted(decorator) == "staticmethod" for decorator in function.decorator_list)
        if method and names and not static:
            names = names[1:]
        found = dict.fromkeys((*names, *(argument.arg for argument in spec.kwonlyargs)), UNKNOWN)
        if spec.defaults:
            for name, default in zip(names[-len(spec.defaults) :], spec.defaults, strict=False):
                found[name] = self._default(default)
        for argument, given in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if given is not None:
                found[argument.arg] = self._default(given)
        found.update(zip(names, args, strict=False))
        keyword_names = {*names, *(argument.arg for argument in spec.kwonlyargs)}
        found.update({name: value for name, value in options.items() if name in keyword_names})
        return found

    def _default(self, node: ast.expr) -> Value:
        """A default says what the author had in mind; a default of None or a flag says nothing."""
        value = (
            self.evaluate(node) if isinstance(node, (ast.Constant, ast.UnaryOp, ast.Attribute)) else UNKNOWN
        )
        return value if value.number is not None and value.kind == "number" else UNKNOWN

    def prepare(self, owner: ClassFacts) -> None:
        raise NotImplementedError

    def run(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Value:
        raise NotImplementedError


def _informative(value: Value) -> bool:
    return (
        value.known
        or value.dtype is not None
        or value.number is not None
        or bool(value.traits)
        or value.kind in ("module", "instance", "dtype")
    )


def _signature(value: Value) -> tuple[object, ...]:
    return (
        value.kind,
        value.low,
        value.high,
        value.low_open,
        value.high_open,
        value.dtype,
        value.traits,
        value.known,
        value.const if isinstance(value.const, (str, int, float)) else None,
    )


def _layer_name(layer: Layer) -> str:
    last = layer.parts[-1] if layer.parts else layer
    return {"ReLU": "relu", "Sigmoid": "sigmoid", "Softmax": "softmax", "Tanh": "tanh"}.get(
        last.name, last.name
    )


def _shape(args: Sequence[Value], options: dict[str, Value], name: str) -> tuple[int | None, ...] | None:
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


def _literal_shape(value: Value) -> tuple[int | None, ...]:
    shape: list[int | None] = []
    while value.kind == "tuple" and value.items:
        shape.append(len(value.items))
        value = value.items[0]
    return tuple(shape)


__all__ = ["Caller", "Operation", "Span", "join"]
