"""One operation in float32: its inputs are widened, its result narrowed again where what follows needs that."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Prescription
from stayfinite.remedies.source import called
from stayfinite.remedies.wider_operation import WiderOperation

_HALF = ("float16", "half", "bfloat16")


class Float32Operation(WiderOperation):
    """The op on float32 inputs; under autocast, or where half cannot hold it, the result stays in float32."""

    name = "float32-operation"
    sentence = "compute this operation in float32"
    kinds = frozenset({Kind.HALF_OVERFLOW, Kind.EPS_VANISHED, Kind.POWER_OVERFLOW, Kind.EXP_OVERFLOW, Kind.LOG_OF_ZERO,
                       Kind.SOFTMAX_EMPTY_ROW, Kind.ZERO_TIMES_INF, Kind.GROWN})  # fmt: skip
    rank = 3
    dtype, method = "float32", "float"

    def fits(self, case: Case) -> bool:
        return case.kind in self.kinds and case.in_half

    def ways(self, case: Case) -> Iterator[Prescription]:
        """A cast to half that overflows is not made; it has no operation to be widened."""
        site = case.site
        if case.op != "to_copy":
            yield from super().ways(case)
        elif site is not None:
            casts = [node for node in site.calls("to", "type", "half", "bfloat16") if _is_cast(node)]
            edits = tuple(site.replace(node, _without_cast(site.code(node))) for node in casts)
            if edits:
                yield Prescription(self, site.file, edits)


def _is_cast(node: ast.Call) -> bool:
    return called(node) in ("half", "bfloat16") or any(
        isinstance(a, ast.Attribute) and a.attr in _HALF
        for a in [*node.args, *(k.value for k in node.keywords)]
    )


def _without_cast(code: str) -> str:
    for half in _HALF:
        code = code.replace(f"torch.{half}", "torch.float32").replace(f".{half}()", ".float()")
    return code
