"""Configuration modules in Python, read by ast: assignments of constants, dicts, dict(...) calls, class bodies."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from stayfinite.findings.subjects.config_file import Entry
from stayfinite.readers.config.class_bases import inherited
from stayfinite.readers.config.nodes import DEEPEST, Collected, UnreadableConfig


def read(text: str, file: str) -> Collected:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as trouble:
        raise UnreadableConfig(f"{file}: not valid Python ({trouble})") from trouble
    return read_tree(tree, file)


def read_tree(tree: ast.Module, file: str) -> Collected:
    found = _own(tree, file)
    for entry in inherited(tree, file, found.entries, lambda other, path: _own(other, path).entries):
        found.add(entry)
    return found


def _own(tree: ast.Module, file: str) -> Collected:
    found = Collected(file)
    _body(tree.body, (), found)
    return found


def _body(body: Iterable[ast.stmt], path: tuple[str, ...], found: Collected) -> None:
    seen: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            _body(statement.body, (*path, statement.name), found)
            continue
        target: ast.expr | None = None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.expr) or target is None:
            continue
        key = _key(target)
        if key is not None:
            _pair(key, target, value, path, found, seen, depth=0)


def _key(target: ast.expr) -> str | None:
    """`lr`, `config.lr`, `config["lr"]`."""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return target.slice.value if isinstance(target.slice.value, str) else None
    return None


def _pair(
    key: str,
    place: ast.expr,
    value: ast.expr,
    path: tuple[str, ...],
    found: Collected,
    seen: set[str],
    depth: int,
) -> None:
    pairs = _pairs(value)
    if pairs is None:
        known, constant = _constant(value)
        if not known:
            return
    else:
        constant = None
    entry = Entry(
        (*path, key), constant, place.lineno, place.col_offset + 1, found.file, value.lineno, value.col_offset + 1,
        ast.unparse(value) if isinstance(value, (ast.Constant, ast.UnaryOp)) else "",
        isinstance(value, ast.Constant) and isinstance(value.value, str), pairs is not None,
    )  # fmt: skip
    found.add(entry)
    seen.add(key)
    if pairs is not None and depth < DEEPEST:
        inner_seen: set[str] = set()
        for inner_key, inner_place, inner_value in pairs:
            _pair(inner_key, inner_place, inner_value, entry.path, found, inner_seen, depth + 1)


def _pairs(value: ast.expr) -> list[tuple[str, ast.expr, ast.expr]] | None:
    """The pairs of {...}, dict(...), ConfigDict(...), TrainingArguments(...); None for anything else."""
    if isinstance(value, ast.Dict):
        return [
            (key.value, key, inner)
            for key, inner in zip(value.keys, value.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
    if isinstance(value, ast.Call) and value.keywords:
        return [(word.arg, word.value, word.value) for word in value.keywords if word.arg is not None]
    return None


def _constant(value: ast.expr) -> tuple[bool, object]:
    if isinstance(value, ast.Constant):
        return True, value.value
    if (
        isinstance(value, ast.UnaryOp)
        and isinstance(value.op, ast.USub)
        and isinstance(value.operand, ast.Constant)
    ):
        inner = value.operand.value
        return isinstance(inner, (int, float)), -inner if isinstance(inner, (int, float)) else None
    if isinstance(value, (ast.List, ast.Tuple)):
        items = [_constant(item) for item in value.elts]
        return all(known for known, _ in items), [item for _, item in items]
    if isinstance(value, ast.BinOp):  # 5 * 1e-4, 2 ** 16
        return _arithmetic(value)
    return False, None


def _arithmetic(value: ast.BinOp) -> tuple[bool, object]:
    (left_known, left), (right_known, right) = _constant(value.left), _constant(value.right)
    if not (
        left_known and right_known and isinstance(left, (int, float)) and isinstance(right, (int, float))
    ):
        return False, None
    if isinstance(value.op, ast.Mult):
        return True, left * right
    if isinstance(value.op, ast.Div) and right:
        return True, left / right
    if isinstance(value.op, ast.Pow) and abs(right) < 64 and abs(left) < 1e6:
        return True, left**right if left > 0 else None
    return False, None
