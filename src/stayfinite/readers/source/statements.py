"""The abstract interpreter's statements: one pass through each function, branches joined, loops entered once."""

from __future__ import annotations

import ast
from dataclasses import replace

from stayfinite.findings.subjects.source_file import Value
from stayfinite.readers.source.calls import Caller
from stayfinite.readers.source.finite_tests import finite_names, refuses_bad_norm
from stayfinite.readers.source.index import Index, updates_only
from stayfinite.readers.source.names import dotted, last_name, resolve, variables
from stayfinite.readers.source.scope import UNKNOWN, ClassFacts, Scope
from stayfinite.readers.source.values import join

Function = ast.FunctionDef | ast.AsyncFunctionDef
NO_GRAD = ("no_grad", "inference_mode")
_CONVERSIONS = ("tensor", "as_tensor", "float", "int", "abs", "float32", "float64")
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class Executor(Caller):
    """Follows a whole file."""

    _tests_finite = True
    _updates_only = False

    def follow(self, found: Index, *, tests_finite: bool = True) -> None:
        """The module's own code first, then every function and method by itself."""
        self._memory = {}
        self._updates_only = updates_only(found.classes)
        self._tests_finite = tests_finite  # False where the file never says isfinite: a walk less
        self._collect(found)
        self.scope = Scope(self.globals, "", finite=self._finite(found.tree.body, own=True))
        self.scope.refuses_bad_norm = self._tests_finite and refuses_bad_norm(found.tree.body)
        self._block(found.tree.body)
        self.globals = self.scope.variables
        for function in self.functions.values():
            self._alone(function, None)
        for facts in self.classes.values():
            self.prepare(facts)
            for method in facts.methods.values():
                if method.name != "__init__":
                    self._alone(method, facts)

    def _finite(self, body: list[ast.stmt], own: bool = False) -> frozenset[str]:
        return finite_names(body, own) if self._tests_finite else frozenset()

    def _collect(self, found: Index) -> None:
        """Every function and class, wherever it is defined (a nested one under its own name)."""
        owned: set[int] = set()
        for node in found.classes:
            facts = ClassFacts(node.name, node)
            for member in node.body:
                if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    facts.methods[member.name] = member
                    owned.add(id(member))
            self.classes.setdefault(node.name, facts)
        for facts in self.classes.values():
            for base in facts.node.bases:  # inherited methods of the same file
                parent = self.classes.get(dotted(base) or "")
                if parent is not None and parent is not facts:
                    for name, method in parent.methods.items():
                        if name == "__init__":
                            facts.methods.setdefault(name, method)
        for function in found.functions:
            if id(function) not in owned:
                self.functions.setdefault(function.name, function)

    def prepare(self, owner: ClassFacts) -> None:
        """What the class body and __init__ put into `self`."""
        if owner.prepared:
            return
        owner.prepared = True
        outer = self.scope
        self.scope = Scope({}, owner.name)
        for statement in owner.node.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                self._statement(statement)
        owner.attributes.update(self.scope.variables)
        init = owner.methods.get("__init__")
        if init is not None:
            variables_given = self.parameters_of(init, (), {}, method=True)
            self.scope = Scope(variables_given, "__init__", owner, finite=self._finite(init.body))
            self._block(init.body)
            first = init.args.args[0].arg if init.args.args else "self"
            for name, value in self.scope.variables.items():
                if name.startswith(f"{first}.") and name.count(".") == 1:
                    owner.attributes[name.partition(".")[2]] = value
        self.scope = outer

    def _alone(self, function: Function, owner: ClassFacts | None) -> None:
        """A function with nothing known of its arguments but their defaults."""
        self.scope = Scope(
            self.parameters_of(function, (), {}, method=owner is not None), function.name, owner
        )
        self.run(function)

    def run(self, function: Function) -> Value:
        scope = self.scope
        if self._updates_only or any(self._is_no_grad(decorator) for decorator in function.decorator_list):
            scope.no_grad = True
        scope.finite = self._finite(function.body)
        scope.refuses_bad_norm = self._tests_finite and refuses_bad_norm(function.body)
        self._block(function.body)
        returned = scope.returned
        if not returned:
            return UNKNOWN
        joined = returned[0]
        for value in returned[1:]:
            joined = join(joined, value)
        return joined

    # ---- statements -------------------------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt]) -> bool:
        """Run statements in order; True if the block leaves the function or the turn of the loop."""
        guards = self.scope.guards
        left = False
        for statement in body:
            self._statement(statement)
            if isinstance(statement, _LEAVES):
                left = True
        self.scope.guards = guards
        return left

    def _statement(self, node: ast.stmt) -> None:
        scope = self.scope
        if isinstance(node, ast.Assign):
            scope.targets = frozenset(name for target in node.targets for name in variables(target))
            value = self.evaluate(node.value)
            scope.targets = frozenset()
            for target in node.targets:
                self.assign(target, value)
            if scope.guards and _converts(node.value, scope.guards):
                scope.guards = scope.guards | {name for target in node.targets for name in variables(target)}
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                scope.targets = variables(node.target)
                value = self.evaluate(node.value)
                scope.targets = frozenset()
                self.assign(node.target, value)
        elif isinstance(node, ast.AugAssign):
            self._augmented(node)
        elif isinstance(node, ast.Expr):
            self._expression(node.value)
        elif isinstance(node, ast.Return):
            scope.returned.append(self.evaluate(node.value))
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._loop(node.body, node.orelse, (node.target, node.iter))
        elif isinstance(node, ast.While):
            self.evaluate(node.test)
            self._loop(node.body, node.orelse, None)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._with(node)
        elif isinstance(node, ast.Try):
            self._block(node.body)
            for handler in node.handlers:
                self._block(handler.body)
            self._block(node.orelse)
            self._block(node.finalbody)
        elif isinstance(node, ast.Assert):
            self.evaluate(node.test)
            scope.guards = scope.guards | self.tested(node.test)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope.variables.pop(node.name, None)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                self._block(case.body)

    def assign(self, target: ast.expr, value: Value) -> None:
        scope = self.scope
        if isinstance(target, ast.Name):
            scope.variables[target.id] = value
        elif isinstance(target, ast.Attribute):
            name = dotted(target)
            if name is not None:
                scope.variables[name] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = target.elts
            if value.kind == "tuple" and value.items is not None and len(value.items) == len(parts):
                for part, item in zip(parts, value.items, strict=True):
                    self.assign(part, item)
            else:
                piece = value if value.kind in ("tensor", "mask") else UNKNOWN
                for part in parts:
                    self.assign(part, replace(piece, shape=None) if piece is not UNKNOWN else UNKNOWN)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, UNKNOWN)
        elif isinstance(target, ast.Subscript):
            self._store(target, value)

    def _store(self, target: ast.Subscript, value: Value) -> None:
        """`x[i] = v`: x may now hold v as well."""
        name = dotted(target.value)
        if name is None or name not in self.scope.variables:
            return
        before = self.scope.variables[name]
        if before is UNKNOWN or before.kind not in ("tensor", "mask"):
            return
        before = replace(before, reference=None, items=None)  # no longer what was written
        joined = join(before, value)
        self.scope.variables[name] = (
            replace(joined, grad=before.grad, made=before.made, dtype=before.dtype)
            if joined.known
            else replace(before, made=None, low=-float("inf"), high=float("inf"))
        )

    def _augmented(self, node: ast.AugAssign) -> None:
        scope = self.scope
        scope.targets = variables(node.target)
        current, change = self.evaluate(node.target), self.evaluate(node.value)
        name = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow"}.get(
            type(node.op)
        )
        value = UNKNOWN
        if name is not None:
            expression = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
            value = self.arithmetic(expression, name, current, change, node.target, node.value)
            if name == "add":
                self.record(expression, "accumulate", (current, change), style="operator", keep=True)
        scope.targets = frozenset()
        self.assign(node.target, value)

    def _expression(self, node: ast.expr) -> None:
        value = self.evaluate(node)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return
        method, target = node.func.attr, dotted(node.func.value)
        if target is None:
            return
        in_place = method.endswith("_") and not method.startswith("_")
        # as a statement it can only be a module, which is changed in place
        if method in ("half", "bfloat16") or (method == "to" and value.dtype in ("float16", "bfloat16")):
            made = value.made or value.reference
            self.scope.variables[target] = Value(
                kind="module",
                dtype=value.dtype,
                made=made,  # type: ignore[arg-type]
                reference=self.scope.variables.get(target, UNKNOWN).reference,
            )
        elif in_place and target in self.scope.variables:
            before = self.scope.variables[target]
            if method == "requires_grad_":
                self.scope.variables[target] = replace(before, grad=True)
            elif before.kind in ("tensor", "mask"):
                self.scope.variables[target] = value if value.kind == "tensor" else UNKNOWN

    def _if(self, node: ast.If) -> None:
        scope = self.scope
        self.evaluate(node.test)
        tested = self.tested(node.test)
        text = ast.unparse(node.test) if len(scope.branch) < 12 else "..."
        before, guards, branch = dict(scope.variables), scope.guards, scope.branch
        scope.guards = guards | tested
        scope.branch = (*branch, (text, True))
        left = self._block(node.body)
        after_body = scope.variables
        scope.variables = dict(before)
        scope.branch = (*branch, (text, False))
        scope.guards = guards | tested
        left_else = self._block(node.orelse) if node.orelse else False
        after_else = scope.variables
        scope.branch, scope.guards = branch, guards
        if left and not left_else:
            scope.variables = after_else
            scope.guards = guards | tested
        elif left_else and not left:
            scope.variables = after_body
            scope.guards = guards | tested
        else:
            scope.variables = _joined(after_body, after_else)
            if _replaces(node):
                scope.guards = guards | tested  # `if n == 0: n = 1` settles n for what follows

    def _loop(
        self, body: list[ast.stmt], orelse: list[ast.stmt], over: tuple[ast.expr, ast.expr] | None
    ) -> None:
        scope = self.scope
        before = dict(scope.variables)
        if over is not None:
            self.bind_loop(*over)
        scope.loops += 1
        self._block(body)
        scope.loops -= 1
        scope.variables = _joined(scope.variables, before, prefer=True)
        self._block(orelse)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        scope = self.scope
        no_grad, autocast = scope.no_grad, scope.autocast
        for item in node.items:
            value = self.evaluate(item.context_expr)
            if self._is_no_grad(item.context_expr):
                scope.no_grad = True
            elif value.kind == "autocast" and value.made is not None:
                scope.autocast = autocast_dtype(value)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, UNKNOWN)
        self._block(node.body)
        scope.no_grad, scope.autocast = no_grad, autocast

    def _is_no_grad(self, node: ast.expr) -> bool:
        target = node.func if isinstance(node, ast.Call) else node
        name = dotted(target)
        if name is None:
            return False
        full = resolve(name, self.imported) or name
        return full.startswith("torch") and full.rpartition(".")[2] in NO_GRAD


def autocast_dtype(value: Value) -> str | None:
    """The dtype an autocast uses: the one that is given, else float16 on a GPU and bfloat16 on a CPU."""
    made = value.made
    if made is None:
        return None
    enabled = made.options.get("enabled")
    if enabled is not None and enabled.const is False:
        return "float32"
    for given in (*made.operands, *made.options.values()):
        if given.kind == "dtype":
            return str(given.const)
    if "dtype" in made.options or len(made.operands) > 1:
        return None
    device = made.operands[0] if made.operands else made.options.get("device_type")
    if device is None:  # torch.cuda.amp.autocast()
        return "float16"
    return {"cuda": "float16", "cpu": "bfloat16"}.get(str(device.const))


def _joined(first: dict[str, Value], second: dict[str, Value], prefer: bool = False) -> dict[str, Value]:
    made: dict[str, Value] = {}
    for name in first.keys() | second.keys():
        a, b = first.get(name), second.get(name)
        if a is None or b is None:
            made[name] = a or b or UNKNOWN
        elif a is b or (a.kind == "module" and a.dtype in ("float16", "bfloat16")):
            made[name] = a
        elif b.kind == "module" and b.dtype in ("float16", "bfloat16"):
            made[name] = b
        else:
            made[name] = a if prefer and b is UNKNOWN else join(a, b)
    return made


def _converts(node: ast.expr, tested: frozenset[str]) -> bool:
    """`torch.tensor(alpha, ...)`, `float(n)`: what was tested, in another shape."""
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return False
    called = last_name(node.func)
    return called in _CONVERSIONS and dotted(node.args[0]) in tested


def _replaces(node: ast.If) -> bool:
    """The body only puts another value into a variable that the test speaks of."""
    names = variables(node.test)
    return not node.orelse and any(
        isinstance(statement, (ast.Assign, ast.AugAssign))
        and not names.isdisjoint(
            variables(statement.targets[0] if isinstance(statement, ast.Assign) else statement.target)
        )
        for statement in node.body
    )
