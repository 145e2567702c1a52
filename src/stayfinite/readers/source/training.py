"""What a training loop does, in order: backward, unscale, clip, step, schedule, and the tests that skip a batch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from stayfinite.findings.subjects.source_file import Event, FunctionFacts, Guard
from stayfinite.readers.source.index import Index
from stayfinite.readers.source.names import dotted, last_name, variables

_OPTIMIZER = re.compile(r"(^|[._])(opt|optim|optimizer|optimizers|optimiser)(_?\w{0,4})?$", re.IGNORECASE)
_SCHEDULER = re.compile(r"(^|[._])(sch|sched|scheduler|lr_sched|lr_scheduler|schedule)\w*$", re.IGNORECASE)
_SCALER = re.compile(r"(^|[._])(sc\d?|\w*scaler\w*)$", re.IGNORECASE)
LOSS = re.compile(r"(^|[._])\w*(loss|objective)\w*$", re.IGNORECASE)
NORM = re.compile(r"(^|[._])\w*(norm|gnorm)\w*$", re.IGNORECASE)

Kinds = dict[str, str]  # variable -> optimizer, scaler, scheduler


def function_facts(nodes: Index, kinds: Kinds) -> list[FunctionFacts]:
    """The events and tests of the module's own code and of every function in it."""
    found = [_facts("", nodes.tree.body, kinds)]
    found += [_facts(node.name, node.body, kinds) for node in nodes.functions]
    return [facts for facts in found if facts.events or facts.guards]


def constructed(nodes: Index) -> Kinds:
    """Variables that are made as optimizer, scaler or scheduler in this file."""
    kinds: Kinds = {}
    for node in nodes.assignments:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        called = (dotted(node.value.func) or "").rpartition(".")[2]
        full = dotted(node.value.func) or ""
        kind = None
        if called == "GradScaler":
            kind = "scaler"
        elif "lr_scheduler" in full or (called.endswith(("LR", "Scheduler")) and called[:1].isupper()):
            kind = "scheduler"
        elif (".optim." in f".{full}" and called[:1].isupper()) or called in (
            "Adam",
            "AdamW",
            "SGD",
            "RMSprop",
        ):
            kind = "optimizer"
        if kind is not None:
            for target in node.targets:
                name = dotted(target)
                if name is not None:
                    kinds[name] = kind
    return kinds


def _trained(call: ast.Call, inner: ast.expr | None) -> str:
    """What a backward pass starts from: `loss.backward()`, `scaler.scale(loss).backward()`, `(loss / n).backward()`,
    `accelerator.backward(loss)`."""
    given = dotted(call.args[0]) if call.args else None
    if isinstance(inner, ast.Call) and inner.args:
        inner = inner.args[0]
    if isinstance(inner, ast.BinOp):
        inner = inner.left
    receiver = dotted(inner) if inner is not None else None
    if given is not None and LOSS.search(given) and not (receiver and LOSS.search(receiver)):
        return given
    return receiver or (ast.unparse(inner) if inner is not None else "")


def _facts(name: str, body: list[ast.stmt], kinds: Kinds) -> FunctionFacts:
    walk = _Walk(kinds)
    walk.block(body)
    return FunctionFacts(name, tuple(walk.events), tuple(walk.guards))


class _Walk:
    """Goes through one function's statements in order; nested functions are others' business."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.events: list[Event] = []
        self.guards: list[Guard] = []
        self.branch: tuple[tuple[str, bool], ...] = ()
        self.loop: tuple[int, ...] = ()

    def block(self, body: list[ast.stmt]) -> None:
        for index, statement in enumerate(body):
            self.statement(statement, body[index + 1 :])

    def statement(self, node: ast.stmt, rest: list[ast.stmt]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return
        if isinstance(node, ast.If):
            self.expression(node.test)
            self._guard(node, rest)
            outer, text = self.branch, ast.unparse(node.test) if len(self.branch) < 12 else "..."
            self.branch = (*outer, (text, True))
            self.block(node.body)
            self.branch = (*outer, (text, False))
            self.block(node.orelse)
            self.branch = outer
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.expression(node.iter if not isinstance(node, ast.While) else node.test)
            outer_loop = self.loop
            self.loop = (*outer_loop, node.lineno)
            self.block(node.body)
            self.loop = outer_loop
            self.block(node.orelse)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self.expression(item.context_expr)
            self.block(node.body)
        elif isinstance(node, ast.Try):
            for inner in (
                node.body,
                *(handler.body for handler in node.handlers),
                node.orelse,
                node.finalbody,
            ):
                self.block(inner)
        elif isinstance(node, (ast.Continue, ast.Break, ast.Return, ast.Raise)):
            if isinstance(node, ast.Return) and node.value is not None:
                self.expression(node.value)
            self._event("leave", node, type(node).__name__.lower())
        elif isinstance(node, ast.AugAssign):
            self.expression(node.value)
            if isinstance(node.op, ast.Add):
                name, source = dotted(node.target), dotted(node.value)
                if name is not None and source is not None:
                    self._event("accumulate", node, name, argument=source)
        else:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assigned(node.targets[0], node.value)
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.expression(child)

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        name = dotted(target)
        if name is None:
            return
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and dotted(value.left) == name:
            source = dotted(value.right)
            if source is not None:
                self._event("accumulate", value, name, argument=source)
        self._event("assign", value, name, argument=" ".join(sorted(variables(value))))

    def expression(self, node: ast.expr) -> None:
        for inner in _calls(node):
            self._call(inner)

    def _call(self, node: ast.Call) -> None:
        name = dotted(node.func)
        method = last_name(node.func)
        receiver = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else None
        first = dotted(node.args[0]) or "" if node.args else ""
        if method in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
            self._event("clip", node, first, argument=method)
        elif method == "step" and receiver is not None:
            kind = self._kind(receiver)
            if kind == "scaler":
                self._event("step", node, first, scaled=True, argument=receiver)
            elif kind == "scheduler":
                given = ast.unparse(node.args[0]) if node.args else ""
                self._event("schedule", node, receiver, argument=given)
            elif kind == "optimizer":
                self._event("step", node, receiver)
        elif method == "unscale_" and receiver is not None:
            self._event("unscale", node, first, argument=receiver)
        elif method == "backward":
            inner = node.func.value if isinstance(node.func, ast.Attribute) else None
            scaled = (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr == "scale"
            )
            self._event("backward", node, _trained(node, inner), scaled=scaled)
        elif method == "zero_grad":
            self._event("zero_grad", node, receiver or "")
        elif method == "update" and receiver is not None and self._kind(receiver) == "scaler":
            self._event("update", node, receiver)
        elif method in ("load_state_dict", "state_dict", "load") and (receiver or name):
            self._event(method, node, receiver or "", argument=ast.unparse(node.args[0]) if node.args else "")
        elif method == "append" and receiver is not None and len(node.args) == 1 and LOSS.search(first):
            self._event("accumulate", node, receiver, argument=first)
        elif method == "get_scale":
            self._event("get_scale", node, receiver or "")

    def _kind(self, name: str) -> str | None:
        if name in self.kinds:
            return self.kinds[name]
        last = name.rpartition(".")[2]
        for pattern, kind in ((_SCALER, "scaler"), (_SCHEDULER, "scheduler"), (_OPTIMIZER, "optimizer")):
            if pattern.search(last):
                return kind
        return None

    def _event(
        self, what: str, node: ast.AST, subject: str, *, scaled: bool = False, argument: str = ""
    ) -> None:
        self.events.append(
            Event(
                what,
                getattr(node, "lineno", 0),
                getattr(node, "col_offset", 0) + 1,
                subject,
                self.branch,
                self.loop,
                scaled,
                argument,
            )
        )

    def _guard(self, node: ast.If, rest: list[ast.stmt]) -> None:
        compared, only_nan, finite = _tests(node.test)
        never = _equal_to_nan(node.test)
        if not (compared or only_nan or finite or never):
            return
        body = [inner for statement in node.body for inner in ast.walk(statement)]
        calls = [inner for inner in body if isinstance(inner, ast.Call)]
        methods = {inner.func.attr for inner in calls if isinstance(inner.func, ast.Attribute)}
        skips = any(isinstance(inner, (ast.Continue, ast.Break, ast.Return, ast.Raise)) for inner in body)
        later = [inner for statement in rest for inner in ast.walk(statement) if isinstance(inner, ast.Call)]
        steps = any(
            isinstance(inner.func, ast.Attribute)
            and inner.func.attr == "step"
            and self._kind(dotted(inner.func.value) or "") in ("optimizer", "scaler")
            for inner in [*later, *calls]
        )
        self.guards.append(
            Guard(
                node.lineno, node.col_offset + 1, ast.unparse(node.test), compared, only_nan, finite,
                never=never, skips=skips, zeroes=bool(methods & {"zero_", "zero_grad"}), steps_after=steps,
                loop=self.loop,
            )
        )  # fmt: skip


def _calls(node: ast.expr) -> Iterator[ast.Call]:
    """The calls of an expression in the order they are made: the innermost first; lambdas are not run here."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Lambda):
            continue
        if isinstance(child, ast.expr):
            yield from _calls(child)
        elif isinstance(child, (ast.keyword, ast.comprehension)):
            for inner in ast.iter_child_nodes(child):
                if isinstance(inner, ast.expr) and not isinstance(inner, ast.Lambda):
                    yield from _calls(inner)
    if isinstance(node, ast.Call):
        yield node


def _tests(test: ast.expr) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    compared: set[str] = set()
    asked: dict[str, set[str]] = {"isnan": set(), "isinf": set(), "isfinite": set()}
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE)):
            for side in (node.left, *node.comparators):
                name = dotted(_unwrapped(side))
                if name is not None and (LOSS.search(name) or NORM.search(name)):
                    compared.add(name)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotEq):
            left, right = dotted(node.left), dotted(node.comparators[0])
            if left is not None and left == right:
                asked["isnan"].add(left)  # loss != loss
        elif isinstance(node, ast.Call):
            called = last_name(node.func)
            if called in asked:
                arguments = [*node.args]
                if isinstance(node.func, ast.Attribute) and not node.args:
                    arguments.append(node.func.value)
                asked[called].update(name for argument in arguments for name in variables(argument))
    finite = asked["isfinite"] | (asked["isnan"] & asked["isinf"])
    return (
        tuple(sorted(compared - finite)),
        tuple(sorted(asked["isnan"] - finite - asked["isinf"])),
        tuple(sorted(finite)),
    )


def _equal_to_nan(test: ast.expr) -> tuple[str, ...]:
    """`loss == float("nan")`, `loss is math.nan`: false for every loss."""
    found: set[str] = set()
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Eq, ast.Is)):
            left, right = node.left, node.comparators[0]
            for value, other in ((left, right), (right, left)):
                text = ast.unparse(other).lower().replace('"', "'")
                if text in ("float('nan')", "math.nan", "np.nan", "numpy.nan", "torch.nan"):
                    found.add(ast.unparse(value))
    return tuple(sorted(found))


def _unwrapped(node: ast.expr) -> ast.expr:
    """`loss` of loss.item(), abs(loss), float(loss)."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("item", "detach", "abs", "mean"):
            node = node.func.value
        elif len(node.args) == 1:
            node = node.args[0]
        else:
            break
    return node
