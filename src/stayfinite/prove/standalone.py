"""The failure in a few lines: the expression of the birth with the values that went into it, as a script and a test."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stayfinite.prove.minimise import Samples
from stayfinite.remedies.source import SourceSite, is_pure

_LONGEST, _MOST_VALUES = 40, 600
_SCRIPT = '''"""{title}"""
import math

import torch
import torch.nn.functional as F

{inputs}
value = {expression}  # {place}
print(value)
if value.requires_grad:
    value.float().sum().backward()
{gradients}'''
_TEST = '''"""{title}

The expression that stands on line {line} of {name} now, on the values that made it fail.
Fails while the failure is there, passes when it is cured. Written by stayfinite.
"""

import ast
import math
import pathlib

import torch
import torch.nn.functional as F

FILE = {file!r}
LINE = {line}


def values() -> dict[str, object]:
{inputs}
    return dict(locals())


def expression_now() -> str:
    """What is computed on that line, as the file has it now."""
    text = pathlib.Path(FILE).read_text(encoding="utf-8")
    statements = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Assign, ast.Return, ast.Expr)) and node.lineno <= LINE <= node.end_lineno
    ]
    found = [node.value for node in statements if ast.get_source_segment(text, node.value).startswith({begins!r})]
    return ast.get_source_segment(text, (found or [statements[0].value])[0])


def test_the_expression_is_finite() -> None:
    given = values()
    names = {{"torch": torch, "F": F, "math": math, **given}}
    result = eval(expression_now(), names)
    assert torch.isfinite(result).all(), result
    if result.requires_grad:
        result.float().sum().backward()
        for name, tensor in given.items():
            if isinstance(tensor, torch.Tensor) and tensor.grad is not None:
                assert torch.isfinite(tensor.grad).all(), f"the gradient of {{name}}: {{tensor.grad}}"
'''


@dataclass(frozen=True, slots=True)
class Standalone:
    """Both texts. They were run: the script fails, the test fails without the patch and passes with it."""

    script: str
    test: str


def place_of(site: SourceSite, offset: int) -> int | None:
    """Which of the statements on the line of the birth an edit is in."""
    for number, statement in enumerate(_statements(site)):
        start, end = site.span(statement)
        if start <= offset < end:
            return number
    return None


def names_of(site: SourceSite, number: int) -> tuple[str, ...]:
    """The names that a statement on the line of the birth reads."""
    statement = _statements(site)[number]
    names = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return tuple(dict.fromkeys(names))


def standalone(
    before: SourceSite, after: SourceSite, number: int, values: Mapping[str, Any], title: str
) -> Standalone | None:
    """The failing expression on its own; None where it needs more than plain values, or does not fail alone."""
    old, new = _statements(before)[number].value, _statements(after)[number].value
    if old is None or new is None or not is_pure(old) or not is_pure(new):
        return None
    needed = {n.id for tree in (old, new) for n in ast.walk(tree) if isinstance(n, ast.Name)} - {
        "torch",
        "F",
        "math",
    }
    if any(name not in values for name in needed):
        return None
    code, cured = before.code(old), after.code(new)
    given = _smallest({name: values[name] for name in sorted(needed)}, code, cured)
    if sum(v.numel() for v in given.values() if isinstance(v, Tensor)) > _MOST_VALUES:
        return None
    inputs = [f"{name} = {_written(value)}" for name, value in given.items()]
    of_old = {n.id for n in ast.walk(old) if isinstance(n, ast.Name)}
    name = before.file.replace("\\", "/").rpartition("/")[2]
    trained = [n for n, v in given.items() if n in of_old and isinstance(v, Tensor) and v.requires_grad]
    title = title.replace("\\", "/").replace('"""', "'''")
    script = _SCRIPT.format(
        title=title,
        inputs="\n".join(line for line in inputs if line.partition(" ")[0] in of_old),
        expression=code,
        place=f"{name}:{before.line}",
        gradients="".join(f'    print("gradient of {n}:", {n}.grad)\n' for n in trained) or "    pass\n",
    )
    test = _TEST.format(
        title=title,
        inputs="\n".join(f"    {line}" for line in inputs) or "    pass",
        file=before.file,
        name=name,
        line=before.line,
        begins=_common(code, cured),
    )
    if script.count("\n") > _LONGEST or "\n" in code or _is_finite(code, given) is not False:
        return None
    if _is_finite(cured, given) is not True:
        return None
    return Standalone(script, test)


def _statements(site: SourceSite) -> list[ast.Assign | ast.Return | ast.Expr]:
    """The statements on the line of the birth that compute something, in their order."""
    found = [
        node
        for node in ast.walk(site.tree)
        if isinstance(node, (ast.Assign, ast.Return, ast.Expr))
        and node.lineno <= site.line <= (node.end_lineno or node.lineno)
    ]
    return sorted(found, key=lambda node: site.span(node))


def _common(one: str, other: str) -> str:
    length = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    return one[: min(length, 12)]


def _is_finite(code: str, given: Mapping[str, Any]) -> bool | None:
    """Whether the value and its gradients are; None for an expression that cannot be computed alone."""
    import math

    own = {
        name: value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, Tensor)
        else value
        for name, value in given.items()
    }
    try:
        with torch.enable_grad():
            result = eval(code, {"torch": torch, "F": F, "math": math, **own})
            if not isinstance(result, Tensor):
                return True
            if result.requires_grad:
                result.float().sum().backward()  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - whatever it needs, it is not there
        return None
    gradients = [v.grad for v in own.values() if isinstance(v, Tensor) and v.grad is not None]
    return all(bool(torch.isfinite(t).all()) for t in (result, *gradients))


def _smallest(given: dict[str, Any], code: str, cured: str) -> dict[str, Any]:
    """One sample, where all values are batches and one sample fails by itself."""
    sizes = {v.shape[0] for v in given.values() if isinstance(v, Tensor) and v.dim() > 0}
    if len(sizes) != 1 or (count := sizes.pop()) < 2:
        return given

    def some(indices: Sequence[int]) -> dict[str, Any]:
        chosen = torch.tensor(list(indices), dtype=torch.long)
        return {
            name: v.detach()[chosen].requires_grad_(v.requires_grad)
            if isinstance(v, Tensor) and v.dim() > 0
            else v
            for name, v in given.items()
        }

    found = Samples(lambda indices: _is_finite(code, some(indices)) is False).culprits(count)
    if not found:
        return given
    for fewer in (some(found[:1]), some(found)):
        if _is_finite(code, fewer) is False and _is_finite(cured, fewer) is True:
            return fewer
    return given


def _written(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    numbers = repr(value.detach().tolist()).replace("nan", "math.nan").replace("inf", "math.inf")
    made = f"torch.tensor({numbers}, dtype={value.dtype})"
    if value.numel() == 0:
        made = f"torch.zeros({tuple(value.shape)}, dtype={value.dtype})"
    return made + (".requires_grad_()" if value.requires_grad else "")
