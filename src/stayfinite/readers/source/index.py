"""One walk over a syntax tree that sorts the nodes the other parts ask for; walking is what a linter pays for."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from stayfinite.readers.source.names import dotted


@dataclass(slots=True)
class Index:
    """The nodes of a file by kind, in the order of a walk."""

    tree: ast.Module
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)
    classes: list[ast.ClassDef] = field(default_factory=list)
    assignments: list[ast.Assign | ast.AnnAssign] = field(default_factory=list)
    keywords: list[ast.keyword] = field(default_factory=list)


def updates_only(classes: list[ast.ClassDef]) -> bool:
    """The file is an optimizer and has no model: nothing in it is differentiated."""
    bases = [name.rpartition(".")[2] for node in classes for base in node.bases if (name := dotted(base))]
    return any(name.endswith("Optimizer") for name in bases) and not any(
        name.endswith("Module") for name in bases
    )


def index(tree: ast.Module) -> Index:
    """Walk once, without recursion."""
    found = Index(tree)
    homes: dict[type, list[Any]] = {
        ast.Import: found.imports,
        ast.ImportFrom: found.imports,
        ast.FunctionDef: found.functions,
        ast.AsyncFunctionDef: found.functions,
        ast.ClassDef: found.classes,
        ast.Assign: found.assignments,
        ast.AnnAssign: found.assignments,
        ast.keyword: found.keywords,
    }
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        home = homes.get(type(node))
        if home is not None:
            home.append(node)
        for name in node._fields:
            value = getattr(node, name, None)
            if value.__class__ is list:
                stack.extend(item for item in reversed(value) if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST) and not isinstance(value, (ast.Constant, ast.expr_context)):
                stack.append(value)
    return found
