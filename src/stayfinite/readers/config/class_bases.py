"""What a class of a configuration module has from the classes it is derived from, here or in a module beside it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stayfinite.findings.subjects.config_file import Entry
from stayfinite.readers.source.read import UnreadableSource, parse, read_text

_DEEPEST = 8
Read = Callable[[ast.Module, str], list[Entry]]


def inherited(tree: ast.Module, file: str, own: Sequence[Entry], read: Read, depth: int = 0) -> list[Entry]:
    """Entries of bases that a class does not set itself, under the name of the class, at the place they are set."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if depth >= _DEEPEST or not any(node.bases for node in classes.values()):
        return []
    entries = {name: [entry for entry in own if entry.path[0] == name] for name in classes}
    beside = _beside(tree, Path(file).parent)
    made: list[Entry] = []
    for name, node in classes.items():  # a base in this file stands above what is derived from it
        for base in node.bases:
            if isinstance(base, ast.Name):
                brought = _new(name, entries[name], _of_base(base.id, entries, beside, read, depth))
                entries[name] += brought
                made += brought
    return made


def _of_base(
    base: str, here: Mapping[str, list[Entry]], beside: Mapping[str, tuple[Path, str]], read: Read, depth: int
) -> list[Entry]:
    if base in here:
        return here[base]
    if base not in beside:
        return []
    path, original = beside[base]
    try:
        tree = parse(read_text(path), str(path))
    except UnreadableSource:
        return []  # the file itself is named when it is linted
    own = read(tree, str(path))
    return [
        entry
        for entry in [*own, *inherited(tree, str(path), own, read, depth + 1)]
        if entry.path[0] == original
    ]


def _new(name: str, has: Sequence[Entry], brought: Sequence[Entry]) -> list[Entry]:
    set_here = {entry.path for entry in has}
    moved = [replace(entry, path=(name, *entry.path[1:])) for entry in brought]
    return [entry for entry in moved if entry.path not in set_here]


def _beside(tree: ast.Module, folder: Path) -> dict[str, tuple[Path, str]]:
    """Names imported from a module in the same folder: its file, and the name there."""
    found: dict[str, tuple[Path, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.level <= 1:
            path = folder / f"{node.module.rpartition('.')[2]}.py"
            if path.is_file():
                found |= {alias.asname or alias.name: (path, alias.name) for alias in node.names}
    return found
