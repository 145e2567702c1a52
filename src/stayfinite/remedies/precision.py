"""Another dtype for the whole file: bfloat16, which has the range of float32, or float32 itself."""

from __future__ import annotations

import ast

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy
from stayfinite.remedies.source import Edit, called

_KINDS = frozenset({Kind.HALF_OVERFLOW, Kind.EPS_VANISHED, Kind.HALF_UPDATE, Kind.MASK_OVERFLOW})


class Bfloat16(Remedy):
    """bfloat16 wherever the file says float16."""

    name = "bfloat16"
    sentence = "use bfloat16 instead of float16: it has the range of float32"
    kinds = _KINDS
    rank = 6
    only_wider = True

    def edits(self, case: Case) -> list[Edit]:
        return _other_dtype(case, "bfloat16", "bfloat16")


class Float32(Remedy):
    """float32 wherever the file says float16 or bfloat16."""

    name = "float32"
    sentence = "keep weights and computation in float32"
    kinds = _KINDS
    rank = 7
    only_wider = True

    def edits(self, case: Case) -> list[Edit]:
        return _other_dtype(case, "float32", "float")


def _other_dtype(case: Case, dtype: str, method: str) -> list[Edit]:
    site = case.site
    assert site is not None
    found: list[Edit] = []
    old = ("float16", "half") if dtype == "bfloat16" else ("float16", "half", "bfloat16")
    for node in ast.walk(site.tree):
        if isinstance(node, ast.Call) and called(node) in ("half", *(old if dtype == "float32" else ())):
            if isinstance(node.func, ast.Attribute) and not node.args:
                end = site.span(node.func)[1]
                found.append(Edit(end - len(node.func.attr), end, method, statement=True))
        elif isinstance(node, ast.Attribute) and node.attr in old and site.code(node.value) == site.torch:
            found.append(Edit(*site.span(node), f"{site.torch}.{dtype}", statement=True))
    return found
