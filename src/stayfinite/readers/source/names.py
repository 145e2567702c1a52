"""What a name in a file refers to: imports resolved to the dotted names that torch itself uses."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache

_SHORT = {
    "torch.functional": "torch",
    "torch.nn.functional": "torch",
    "torch.special": "torch",
    "torch.linalg": "torch.linalg",
    "numpy.linalg": "numpy.linalg",
}


def imports(nodes: Iterable[ast.Import | ast.ImportFrom]) -> dict[str, str]:
    """Local name -> dotted name, for every import anywhere in the file."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name
                else:
                    root = alias.name.partition(".")[0]
                    found[root] = root
        elif node.module and node.level == 0:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def last_name(called: ast.expr) -> str:
    """`c` of `a.b.c(...)` and of `f(x).c(...)`, `f` of `f(...)`; "" for anything else that is called."""
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` for an attribute of names; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


def resolve(name: str, imported: dict[str, str]) -> str | None:
    """The full dotted name of something imported; None for a local name."""
    root, dot, rest = name.partition(".")
    origin = imported.get(root)
    if origin is None:
        return None
    return f"{origin}.{rest}" if dot else origin


@lru_cache(maxsize=4096)
def torch_function(full: str) -> str | None:
    """`softmax` for torch.nn.functional.softmax, torch.softmax and torch.special.softmax; None for no function."""
    module, _, last = full.rpartition(".")
    home = _SHORT.get(module, module)
    if home in ("torch", "torch.linalg", "torch.Tensor"):
        return last
    if home in ("torch.nn", "torch.cuda.amp", "torch.amp", "torch.optim", "torch.optim.lr_scheduler"):
        return last
    if module in ("torch.nn.utils", "torch.nn.utils.clip_grad", "torch.nn.init", "torch.nn.parameter"):
        return last
    if module.startswith(("torch.distributions", "torch.optim")):
        return last
    return None


def variables(node: ast.AST) -> frozenset[str]:
    """The variables of an expression, dotted where they are attributes, with the roots of those."""
    found: set[str] = set()
    stack: list[ast.AST] = [node]
    while stack:
        inner = stack.pop()
        if isinstance(inner, ast.Attribute):
            name = dotted(inner)
            if name is not None:
                found.add(name)
                parts = name.split(".")
                if parts[0] != "self":
                    found.update(".".join(parts[:n]) for n in range(1, len(parts)))
                elif len(parts) > 2:
                    found.update(".".join(parts[:n]) for n in range(2, len(parts)))
                continue
            stack.append(inner.value)
        elif isinstance(inner, ast.Name):
            found.add(inner.id)
        else:
            stack.extend(ast.iter_child_nodes(inner))
    found.discard("torch")
    found.discard("F")
    found.discard("self")
    return frozenset(found)
