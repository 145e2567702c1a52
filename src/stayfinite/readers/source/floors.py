"""Where a parameter named eps ends up: as the floor of a logarithm it needs to exist in the dtype, no more."""

from __future__ import annotations

import ast

from stayfinite.readers.source.names import dotted, last_name

_FLOORS = ("clamp", "clamp_min", "clip", "maximum")


def floors_a_log(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Every use of the parameter is `log(x.clamp(min=eps))`: below the floor the gradient is 0, whatever the eps."""
    if "eps" not in name.lower():
        return False
    uses = sum(
        isinstance(node, ast.Name) and node.id == name
        for statement in function.body
        for node in ast.walk(statement)
    )
    within = sum(
        _floored_at(node, name)
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    )
    return uses > 0 and uses == within


def _floored_at(log: ast.Call, name: str) -> bool:
    """`torch.log(x.clamp(min=eps))` or `x.clamp(min=eps).log()`."""
    method = isinstance(log.func, ast.Attribute) and log.func.attr == "log"
    inside: list[ast.expr] = [*log.args]
    if method and isinstance(log.func, ast.Attribute):
        inside.append(log.func.value)
    elif dotted(log.func) != "log":
        return False
    return any(isinstance(node, ast.Call) and _is_floor(node, name) for node in inside)


def _is_floor(call: ast.Call, name: str) -> bool:
    called = last_name(call.func)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return called in _FLOORS and any(isinstance(node, ast.Name) and node.id == name for node in given)
