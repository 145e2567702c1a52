"""Whether two pieces of code are the same thing: x and x.max(), x and its transpose, an expression written twice."""

from __future__ import annotations

import ast


def differences(*nodes: ast.expr) -> bool:
    return any(isinstance(inner, ast.Sub) for node in nodes for inner in ast.walk(node))


def reduces(node: ast.expr, names: tuple[str, ...]) -> bool:
    while isinstance(node, ast.Attribute) and node.attr == "values":
        node = node.value
    while (
        isinstance(node, ast.Subscript)
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("detach", "unsqueeze")
        )
        or (isinstance(node, ast.Attribute) and node.attr == "values")
    ):
        node = node.func.value if isinstance(node, ast.Call) else node.value  # type: ignore[attr-defined]
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def receiver(node: ast.expr) -> ast.expr | None:
    """`x` of x.max(...)[0] and of torch.max(x, ...)."""
    while True:
        if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "values"):
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("detach", "unsqueeze")
        ):
            node = node.func.value
        else:
            break
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    if isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "np"):
        return node.args[0] if node.args else None
    return node.func.value


def transposed(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        return node.value
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("t", "transpose")
    ):
        return node.func.value
    return None


def same(a: ast.expr | None, b: ast.expr | None) -> bool:
    """The same expression, written twice."""
    if a is None or b is None or type(a) is not type(b):
        return False
    if isinstance(a, ast.Name) and isinstance(b, ast.Name):
        return a.id == b.id
    if isinstance(a, (ast.Constant, ast.UnaryOp)):
        return False
    return ast.dump(a) == ast.dump(b)
