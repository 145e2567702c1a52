"""One operation in float64: what people try where float32 itself overflows. What has grown that far grows on."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case
from stayfinite.remedies.wider_operation import WiderOperation


class Float64Operation(WiderOperation):
    """The op on float64 inputs; its result is narrowed again, if that can hold it."""

    name = "float64-operation"
    sentence = "compute this operation in float64"
    kinds = frozenset({Kind.GROWN, Kind.POWER_OVERFLOW, Kind.EXP_OVERFLOW})
    universal = False  # never called proved, so it may be a control
    rank = 8
    is_cure = False  # numbers that float32 cannot hold are no numbers to train on
    dtype, method = "float64", "double"

    def fits(self, case: Case) -> bool:
        """Only where float32 is not wide enough."""
        known = case.birth.float32
        in_float32 = case.birth.dtype == "float32" or (known is not None and not known.finite)
        return case.kind in self.kinds and in_float32
