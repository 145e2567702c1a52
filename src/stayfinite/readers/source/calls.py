"""The abstract interpreter's calls: builtins, methods, modules, and functions of the same file."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import replace

from stayfinite.findings.subjects.source_file import Value
from stayfinite.readers.source import intervals
from stayfinite.readers.source.layers import Layer, output
from stayfinite.readers.source.names import dotted, last_name, resolve, variables
from stayfinite.readers.source.scope import POSITIVE_UNKNOWN, UNKNOWN, ClassFacts, Scope
from stayfinite.readers.source.torch_calls import TorchCaller
from stayfinite.readers.source.transfer import Draft, maximum, minimum
from stayfinite.readers.source.values import element_of, number
from stayfinite.readers.source.vocabulary import WATCHED

_DEPTH = 3
_MOST_INLINED = 300


class Caller(TorchCaller):
    """Evaluates calls."""

    _memory: dict[tuple[object, ...], Value]

    def call(self, node: ast.Call) -> Value:
        name = dotted(node.func)
        self.sight.calls.add(last_name(node.func))
        if name is not None:
            full = resolve(name, self.imported)
            if full is not None:
                if full.startswith("torch"):
                    return self.torch_call(node, full)
                return self._other_library(node, full)
            if "." not in name:
                return self._local(node, name)
        return self._method(node)

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
            if full.endswith(("rearrange", "repeat")):
                return args[0]
            if full.endswith("reduce"):
                return self.apply(node, "mean", args[:1], {}, "function")
        return UNKNOWN

    def _local(self, node: ast.Call, name: str) -> Value:
        if name in self.functions and name not in self.scope.variables:
            return self.inline(node, self.functions[name], None)
        if name in self.classes:
            facts = self.classes[name]
            self.arguments(node)
            return Value(kind="instance", reference=facts)
        value = self.scope.variables.get(name) or self.globals.get(name)
        if value is not None and value.kind in ("module", "instance"):
            return self.call_module(node, value)
        if name in ("float", "int"):
            return self._plain_number(node)
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
        if name == "sum" and args:
            if not args[0].items:
                return UNKNOWN
            element = element_of(args[0])
            total = self.apply(node, "sum", [element], {}, "function")
            return replace(total, kind="number") if element.kind == "number" and total.known else total
        if name == "range":
            return Value(kind="range", items=(Value(kind="number", traits=frozenset({"loop_index"})),))
        if name in ("list", "tuple", "reversed", "sorted", "iter", "next") and args:
            return args[0]
        return UNKNOWN

    def _plain_number(self, node: ast.Call) -> Value:
        """`int(x ** 0.5)`: no gradient flows through what becomes a number of Python."""
        before, self.scope.no_grad = self.scope.no_grad, True
        args, _ = self.arguments(node)
        self.scope.no_grad = before
        if not args:
            return UNKNOWN
        text = args[0].const
        if isinstance(text, str):
            try:
                return number(float(text))
            except ValueError:
                return UNKNOWN
        return args[0] if args[0] is UNKNOWN else replace(args[0], grad=False)

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
            if method == "register_buffer":
                given, options = self.arguments(node)
                self.record(node, method, given, options, style="method", keep=True)
                if len(given) > 1 and isinstance(given[0].const, str):
                    self.scope.variables[f"{base.id}.{given[0].const}"] = given[1]
                return UNKNOWN
            if method in owner.methods:
                return self.inline(node, owner.methods[method], owner)
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
            if receiver.kind == "distribution" and method in ("rsample", "log_prob"):
                return Value("tensor", grad=True)
            return UNKNOWN
        return self.apply(node, method, [receiver, *args], options, "method")

    def _module_method(self, node: ast.Call, receiver: Value, method: str) -> Value:
        args, options = self.arguments(node)
        if method in ("half", "bfloat16", "to"):
            return self.cast(node, method, [receiver, *args], options, "method")
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
                return self.inline(node, target, receiver.reference)
        return UNKNOWN

    def call_module(self, node: ast.Call, module: Value) -> Value:
        """`net(x)`."""
        if module.kind == "instance" and isinstance(module.reference, ClassFacts):
            forward = module.reference.methods.get("forward") or module.reference.methods.get("__call__")
            if forward is not None:
                value = self.inline(node, forward, module.reference, always=True)  # its layers say enough
                if value.known or value is not UNKNOWN:
                    return value
                return Value("tensor", grad=True, dtype=module.dtype)
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
        *,
        always: bool = False,
    ) -> Value:
        """Follow a call into a function of this file, with what is known of its arguments."""
        args, options = self.arguments(node)
        informative = any(_informative(value) for value in (*args, *options.values()))
        if (
            not (informative or always)
            or self.scope.depth >= _DEPTH
            or self.sight.inlined >= _MOST_INLINED
            or any(isinstance(argument, ast.Starred) for argument in node.args)
        ):
            return UNKNOWN
        settled = self._settled_parameters(node, function, method=owner is not None)
        key = (
            id(function),
            settled,
            *(_signature(value) for value in args),
            *((name, _signature(value)) for name, value in sorted(options.items())),
        )
        if key in self._memory:
            return self._memory[key]
        self._memory[key] = UNKNOWN  # of a recursive call nothing is known
        self.sight.inlined += 1
        if owner is not None:
            self.prepare(owner)
        parameters = self.parameters_of(function, args, options, method=owner is not None)
        outer = self.scope
        self.scope = Scope(
            parameters,
            function.name,
            owner,
            outer.depth + 1,
            no_grad=outer.no_grad,
            autocast=outer.autocast,
            guards=settled,
        )
        try:
            value = self.run(function)
        finally:
            self.scope = outer
        self._memory[key] = value
        return value

    def _settled_parameters(
        self, node: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool
    ) -> frozenset[str]:
        """The parameters that get something the tests around the call speak of."""
        tests = self.scope.guards | self.scope.selecting
        if not tests:
            return frozenset()
        names = self.positional_names(function, method=method)
        given = [
            *zip(names, node.args, strict=False),
            *((word.arg, word.value) for word in node.keywords if word.arg),
        ]
        return frozenset(name for name, argument in given if not tests.isdisjoint(variables(argument)))

    @staticmethod
    def positional_names(function: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> list[str]:
        """The names of positional parameters, without `self`."""
        spec = function.args
        names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
        static = any(dotted(decorator) == "staticmethod" for decorator in function.decorator_list)
        return names[1:] if method and names and not static else names

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
        names = self.positional_names(function, method=method)
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
