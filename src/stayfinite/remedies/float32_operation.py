"""One operation in float32: its inputs are widened, or a cast to half is not made."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, argument, called, with_argument

_HALF = ("float16", "half", "bfloat16")


class Float32Operation(Remedy):
    """The op on float32 inputs; the result stays in float32, where it is finite."""

    name = "float32-operation"
    sentence = "compute this operation in float32"
    kinds = frozenset({Kind.HALF_OVERFLOW, Kind.EPS_VANISHED, Kind.POWER_OVERFLOW, Kind.EXP_OVERFLOW, Kind.LOG_OF_ZERO,
                       Kind.SOFTMAX_EMPTY_ROW, Kind.ZERO_TIMES_INF})  # fmt: skip
    rank = 3

    def fits(self, case: Case) -> bool:
        return case.kind in self.kinds and case.in_half

    def edits(self, case: Case) -> list[Edit]:
        site = case.site
        assert site is not None
        if case.op == "to_copy":
            casts = site.calls("to", "type", "half", "bfloat16")
            return [site.replace(n, _without_cast(site.code(n))) for n in casts if _is_cast(n)]
        found: list[Edit] = []
        for name in case.names:
            for node in site.operations(name):
                text: str | None = None
                if isinstance(node, ast.BinOp):
                    left, right = (
                        site.term(s) + ("" if isinstance(s, ast.Constant) else ".float()")
                        for s in (node.left, node.right)
                    )
                    start, end = site.span(node.left)[1], site.span(node.right)[0]
                    between = site.text[start:end].replace(")", "").replace("(", "")
                    text = f"{left}{between}{right}"
                elif isinstance(node, ast.Call):
                    text = _widened(node, case)
                if text is not None:
                    found.append(site.replace(node, text))
            if found:
                break
        return found


def _widened(node: ast.Call, case: Case) -> str | None:
    """Every tensor argument as float32; numbers, names of modes and keywords stay."""
    site = case.site
    assert site is not None
    tensors = sum(1 for o in case.birth.operands if o.dtype in ("float16", "bfloat16", "float32"))
    text = site.code(node)
    start, _ = site.span(node)
    for index in reversed(range(max(1, min(2, tensors)))):
        given = argument(node, site, index)
        if given is None or isinstance(given, ast.Constant):
            continue
        inner, after = site.span(given)
        text = text[: inner - start] + f"{site.term(given)}.float()" + text[after - start :]
    return text


def _is_cast(node: ast.Call) -> bool:
    return called(node) in ("half", "bfloat16") or any(
        isinstance(a, ast.Attribute) and a.attr in _HALF
        for a in [*node.args, *(k.value for k in node.keywords)]
    )


def _without_cast(code: str) -> str:
    for half in _HALF:
        code = code.replace(f"torch.{half}", "torch.float32").replace(f".{half}()", ".float()")
    return code


__all__ = ["Float32Operation", "with_argument"]
