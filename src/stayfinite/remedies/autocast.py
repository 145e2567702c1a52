"""Autocast off, or in bfloat16: the whole step, where the operation that overflowed was made half by autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy

_KINDS = frozenset({Kind.HALF_OVERFLOW, Kind.EPS_VANISHED, Kind.MASK_OVERFLOW, Kind.POWER_OVERFLOW})


class AutocastBfloat16(Remedy):
    """autocast in bfloat16, which has the range of float32."""

    name = "autocast-bfloat16"
    sentence = "let autocast use bfloat16 instead of float16: it has the range of float32"
    kinds = _KINDS
    rank = 6
    only_wider = True

    def fits(self, case: Case) -> bool:
        return case.kind in self.kinds and case.birth.autocast == "float16"

    def can_act(self, case: Case) -> bool:
        return case.birth.autocast is not None

    def applied(self) -> AbstractContextManager[None]:
        return _entered_as("bfloat16")


class AutocastOff(Remedy):
    """No autocast: everything in the dtype of the weights."""

    name = "autocast-off"
    sentence = "compute without autocast, in float32"
    kinds = _KINDS
    rank = 7
    only_wider = True

    def fits(self, case: Case) -> bool:
        return case.kind in self.kinds and case.birth.autocast is not None

    def can_act(self, case: Case) -> bool:
        return case.birth.autocast is not None

    def applied(self) -> AbstractContextManager[None]:
        return _entered_as(None)


@contextmanager
def _entered_as(dtype: str | None) -> Iterator[None]:
    """Every autocast that is entered meanwhile has this dtype, or is off; each is as it was when it is left."""
    import torch

    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__
    was: dict[int, list[tuple[Any, Any]]] = {}

    def entered(self: Any) -> Any:
        was.setdefault(id(self), []).append((self._enabled, self.fast_dtype))
        if self.fast_dtype in (torch.float16, torch.bfloat16):
            self._enabled = self._enabled and dtype is not None
            self.fast_dtype = getattr(torch, dtype) if dtype is not None else self.fast_dtype
        return enter(self)  # type: ignore[no-untyped-call]

    def left(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if was.get(id(self)):
            self._enabled, self.fast_dtype = was[id(self)].pop()
        return result

    torch.autocast.__enter__, torch.autocast.__exit__ = entered, left  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__, torch.autocast.__exit__ = enter, leave  # type: ignore[method-assign]
