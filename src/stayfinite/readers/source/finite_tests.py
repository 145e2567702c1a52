"""What a function tests with isfinite, and whether its clipping refuses a bad norm."""

from __future__ import annotations

import ast

from stayfinite.readers.source.names import last_name, variables


def finite_names(body: list[ast.stmt], own: bool = False) -> frozenset[str]:
    """The variables that a function tests with isfinite, or for both NaN and Inf."""
    finite: set[str] = set()
    nan: set[str] = set()
    inf: set[str] = set()
    for statement in body:
        if own and isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                called = last_name(node.func)
                if called in ("isfinite", "isnan", "isinf"):
                    arguments = [*node.args]
                    if isinstance(node.func, ast.Attribute) and not node.args:
                        arguments.append(node.func.value)
                    names = {name for argument in arguments for name in variables(argument)}
                    {"isfinite": finite, "isnan": nan, "isinf": inf}[called].update(names)
    # Outside of a decision isfinite only looks: `bad = not isfinite(loss)` does not save the step.
    decided = _decided(body)
    return frozenset((finite | (nan & inf)) & decided)


def _decided(body: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)):
                found |= variables(node.test)
    return found


def refuses_bad_norm(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.keyword)
        and node.arg == "error_if_nonfinite"
        and isinstance(node.value, ast.Constant)
        and node.value.value is True
        for statement in body
        for node in ast.walk(statement)
    )
