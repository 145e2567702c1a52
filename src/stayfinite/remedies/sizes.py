"""Numbers of Python that divide: how many there are, by the form of an expression and of what its names were given."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from stayfinite.remedies.source import SourceSite, called

_NUMBERS = ("math",)  # modules whose attributes are numbers, or make them
_COUNTS = ("len", "numel", "size")
_MADE_NUMBERS = ("len", "numel", "size", "item", "dim", "int", "float")
_DEEP = 4  # names that stand for names


def is_size(node: ast.expr, site: SourceSite, deep: int = _DEEP) -> bool:
    """How many there are, and arithmetic of that with constants: len(x), x.size(0) - 1, n."""
    if isinstance(node, ast.Name):
        return _all_given(node, site, deep, is_size)
    if isinstance(node, ast.BinOp):
        return is_number(node, site, deep) and (
            is_size(node.left, site, deep) or is_size(node.right, site, deep)
        )
    if isinstance(node, ast.Subscript):
        return is_number(node, site, deep)
    return isinstance(node, ast.Call) and called(node) in _COUNTS


def is_number(node: ast.expr, site: SourceSite, deep: int = _DEEP) -> bool:
    """A number of Python, by its form: a constant, math.pi, len(x), x.shape[0], and arithmetic of these."""
    if isinstance(node, ast.Name):
        return _all_given(node, site, deep, is_number)
    if isinstance(node, ast.BinOp):
        return is_number(node.left, site, deep) and is_number(node.right, site, deep)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand, site, deep)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id in _NUMBERS
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Call):
        of_module = isinstance(node.func, ast.Attribute) and is_number(node.func, site, deep)
        return of_module or called(node) in _MADE_NUMBERS
    return isinstance(node, ast.Constant)


def _all_given(
    name: ast.Name, site: SourceSite, deep: int, is_it: Callable[[ast.expr, SourceSite, int], bool]
) -> bool:
    """Everything that this name is given in its scope is that; a parameter of the function may be anything."""
    given = list(_given(name, site)) if deep else []
    return bool(given) and all(one is not None and is_it(one, site, deep - 1) for one in given)


def _given(name: ast.Name, site: SourceSite) -> Iterator[ast.expr | None]:
    """What is assigned to a name; None for what cannot be read: a loop, a `with`, an augmented assignment."""
    scope = site.scope(name)
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        taken = scope.args
        if name.id in {one.arg for one in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)}:
            yield None
    for node in ast.walk(scope):
        stored = isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Store)
        if not stored or site.scope(node) is not scope:
            continue
        statement, outer = site.statement(node), site.parents.get(node)
        if not isinstance(statement, ast.Assign):
            yield None
        elif outer is statement:
            yield statement.value
        else:
            yield _of_a_shape(statement)


def _of_a_shape(statement: ast.Assign) -> ast.expr | None:
    """n, d = x.shape, or x.size(): each name is one of its numbers."""
    value = statement.value
    if isinstance(value, ast.Attribute) and value.attr == "shape":
        return ast.Subscript(value, ast.Constant(0), ast.Load())
    return value if isinstance(value, ast.Call) and called(value) == "size" and not value.args else None
