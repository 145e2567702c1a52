"""Which configuration keys a source reads, and whether the tests around a read let it happen."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stayfinite.findings.subjects.config_file import KeyRead, normal
from stayfinite.readers.source.names import last_name

_CONFIG_NAMES = frozenset(
    [
        "cfg", "config", "conf", "args", "opt", "opts", "options", "hparams", "hp", "params", "settings",
        "flags",
    ]
)  # fmt: skip
_READERS = frozenset({"get", "pop", "getattr", "select"})
_READ_BY_SIGNATURE = frozenset({"LightningCLI", "jsonargparse"})
"""They give every key to the argument of its name, and refuse those that are none: no source mentions a Trainer's."""

Condition = tuple[ast.expr, bool]


@dataclass(slots=True)
class _Read:
    key: str
    line: int
    conditions: tuple[Condition, ...]
    as_number: bool = False  # float(config["lr"])


@dataclass(slots=True)
class SourceKeys:
    """One source: its reads with the tests around them, everything it mentions, and what it unpacks whole."""

    file: str
    reads: list[_Read] = field(default_factory=list)
    mentioned: set[str] = field(default_factory=set)
    unpacked: set[str] = field(default_factory=set)  # `**config["optim"]` -> optim; "" for a whole config
    aliases: dict[str, str | None] = field(default_factory=dict)  # variable -> key

    def effective(self, values: Mapping[str, object]) -> list[KeyRead]:
        """The reads, each with whether a configuration with these values ever reaches it."""
        return [
            KeyRead(read.key, self.file, read.line, _reached(read.conditions, values, self.aliases))
            for read in self.reads
        ]


def made_numbers(sources: Sequence[SourceKeys]) -> frozenset[str]:
    """The keys that are read as `float(config[key])`, and by none of these sources as they are."""
    reads = [read for source in sources for read in source.reads]
    return frozenset(r.key for r in reads if r.as_number) - {r.key for r in reads if not r.as_number}


def source_keys(tree: ast.Module, file: str) -> SourceKeys:
    found = SourceKeys(file)
    for node in ast.walk(tree):
        _mention(node, found)
    _block(tree.body, (), found)
    return found


def _mention(node: ast.AST, found: SourceKeys) -> None:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
        if names & _READ_BY_SIGNATURE:
            found.unpacked.add("")
    elif isinstance(node, ast.Name):
        found.mentioned.add(normal(node.id))
    elif isinstance(node, ast.Attribute):
        found.mentioned.add(normal(node.attr))
        if node.attr in _READ_BY_SIGNATURE:
            found.unpacked.add("")
    elif isinstance(node, ast.arg):
        found.mentioned.add(normal(node.arg))
    elif isinstance(node, ast.keyword):
        if node.arg is not None:
            found.mentioned.add(normal(node.arg))
        else:
            key = read_key(node.value)
            found.unpacked.add(normal(key) if key is not None else "" if _is_config(node.value) else "?")
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
        for word in node.value.replace(".", " ").replace("/", " ").split():
            found.mentioned.add(normal(word.strip("-,:;()[]{}'\"=")))
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        _alias(node.targets[0], node.value, found)


def _alias(target: ast.expr, value: ast.expr, found: SourceKeys) -> None:
    if isinstance(target, ast.Name):
        key = read_key(value)
        if key is not None:
            known = found.aliases.get(target.id, key)
            found.aliases[target.id] = key if known == key else None
        elif target.id in found.aliases:
            found.aliases[target.id] = None
    elif (
        isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    ):
        for part, inner in zip(target.elts, value.elts, strict=True):
            _alias(part, inner, found)


def _is_config(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lower() in _CONFIG_NAMES


def read_key(node: ast.expr) -> str | None:
    """`config["lr"]`, `config.get("lr", 0)`, `args.lr`, `getattr(args, "lr")` -> lr."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value if isinstance(node.slice.value, str) else None
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        place = 1 if name == "getattr" else 0
        if name in _READERS and len(node.args) > place:
            argument = node.args[place]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                return argument.value
    if isinstance(node, ast.Attribute) and _is_config(node.value):
        return node.attr
    return None


def _block(body: list[ast.stmt], conditions: tuple[Condition, ...], found: SourceKeys) -> None:
    for statement in body:
        if isinstance(statement, ast.If):
            _expression(statement.test, conditions, found)
            _block(statement.body, (*conditions, (statement.test, True)), found)
            _block(statement.orelse, (*conditions, (statement.test, False)), found)
            if statement.body and isinstance(statement.body[-1], (ast.Return, ast.Raise, ast.Continue)):
                conditions = (*conditions, (statement.test, False))
            continue
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.expr):
                _expression(child, conditions, found)
            elif not isinstance(child, ast.stmt):
                for inner in ast.iter_child_nodes(child):
                    if isinstance(inner, ast.expr):
                        _expression(inner, conditions, found)
        for name in ("body", "orelse", "finalbody"):
            inner_body = getattr(statement, name, None)
            if isinstance(inner_body, list):
                _block(inner_body, conditions, found)
        for handler in getattr(statement, "handlers", []):
            _block(handler.body, conditions, found)


def _expression(
    node: ast.expr, conditions: tuple[Condition, ...], found: SourceKeys, *, as_number: bool = False
) -> None:
    key = read_key(node)
    if key is not None:
        found.reads.append(_Read(normal(key), node.lineno, conditions, as_number))
    made = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float"
    if isinstance(node, ast.IfExp):
        _expression(node.test, conditions, found)
        _expression(node.body, (*conditions, (node.test, True)), found)
        _expression(node.orelse, (*conditions, (node.test, False)), found)
        return
    if isinstance(node, ast.BoolOp):
        way = isinstance(node.op, ast.And)
        before = conditions
        for part in node.values:
            _expression(part, before, found)
            before = (*before, (part, way))
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _expression(child, conditions, found, as_number=made)
        elif isinstance(child, (ast.keyword, ast.comprehension)):
            for inner in ast.iter_child_nodes(child):
                if isinstance(inner, ast.expr):
                    _expression(inner, conditions, found)


def reached(branch: tuple[tuple[str, bool], ...], values: Mapping[str, object]) -> bool:
    """Whether the tests, as they are written, let a configuration with these values pass (not known: yes)."""
    conditions: list[Condition] = []
    for text, way in branch:
        try:
            conditions.append((ast.parse(text, mode="eval").body, way))
        except (SyntaxError, ValueError):
            continue
    names = {node.id for test, _ in conditions for node in ast.walk(test) if isinstance(node, ast.Name)}
    return _reached(tuple(conditions), values, {name: name for name in names}) is not False


def _reached(
    conditions: tuple[Condition, ...], values: Mapping[str, object], aliases: Mapping[str, str | None]
) -> bool | None:
    for test, way in conditions:
        truth = _truth(test, values, aliases)
        if truth is not None and truth is not way:
            return False
    return True


def _truth(test: ast.expr, values: Mapping[str, object], aliases: Mapping[str, str | None]) -> bool | None:
    """What a test says with this configuration; None where that is not known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, values, aliases)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [_truth(part, values, aliases) for part in test.values]
        if isinstance(test.op, ast.And):
            return False if False in parts else (None if None in parts else True)
        return True if True in parts else (None if None in parts else False)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
        known, value = _value(test.left, values, aliases)
        if not known:
            return None
        if isinstance(test.ops[0], (ast.Eq, ast.Is)):
            return bool(value == test.comparators[0].value)
        if isinstance(test.ops[0], (ast.NotEq, ast.IsNot)):
            return bool(value != test.comparators[0].value)
        return None
    known, value = _value(test, values, aliases)
    return bool(value) if known else None


def _value(
    node: ast.expr, values: Mapping[str, object], aliases: Mapping[str, str | None]
) -> tuple[bool, object]:
    key = read_key(node)
    if key is None and isinstance(node, ast.Name):
        key = aliases.get(node.id)
    if key is None or normal(key) not in values:
        return False, None
    return True, values[normal(key)]
