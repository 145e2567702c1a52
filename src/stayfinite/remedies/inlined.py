"""inlined: a call of a function of the same file that is one expression, as that expression."""

from __future__ import annotations

import ast
import copy

from stayfinite.remedies.source import SourceSite, is_pure


def inlined(call: ast.Call, site: SourceSite) -> ast.expr | None:
    """density(y, mu) -> torch.exp(-(y - mu) ** 2); None where the two might not mean the same."""
    if not isinstance(call.func, ast.Name) or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    functions = [
        node for node in site.tree.body if isinstance(node, ast.FunctionDef) and node.name == call.func.id
    ]
    if len(functions) != 1 or functions[0].decorator_list:
        return None
    function = functions[0]
    body = [
        one
        for one in function.body
        if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    ]
    given = function.args
    plain = not (given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs)
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None or not plain:
        return None
    names = [argument.arg for argument in given.args]
    bound = dict(zip(names, call.args, strict=False))
    bound.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None})
    if set(bound) != set(names) or not all(map(is_pure, bound.values())) or not is_pure(body[0].value):
        return None
    scope = site.scope(call)
    local = {
        node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        local |= {argument.arg for argument in scope.args.args}
    free = {node.id for node in ast.walk(body[0].value) if isinstance(node, ast.Name)} - set(names)
    if free & local and not isinstance(scope, ast.Module):
        return None  # the same name is another thing here
    result: ast.expr = _Bound(bound).visit(copy.deepcopy(body[0].value))
    return result


class _Bound(ast.NodeTransformer):
    def __init__(self, bound: dict[str, ast.expr]) -> None:
        self._bound = bound

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self._bound[node.id]) if node.id in self._bound else node
