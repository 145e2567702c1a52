"""A floor under the loss scale: a scaler that skips for ever ends at 0, and 0 times Inf is NaN."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.remedy import Case, Remedy

_FLOOR: Final = 1.0
_TINY: Final = 2.0**-24


class ScalerFloor(Remedy):
    """The scale is never below 1: gradients are divided by a number whose reciprocal is finite."""

    name = "scaler-floor"
    sentence = "keep the loss scale at 1 or more; what still overflows there is no matter of the scale"
    kinds = frozenset(
        {
            Kind.ZERO_TIMES_INF,
            Kind.DIVISION_BY_ZERO,
            Kind.CAME_IN,
            Kind.UNKNOWN,
            Kind.OPTIMIZER_DIVISION,
        }
    )
    rank = 2
    universal = True

    def fits(self, case: Case) -> bool:
        return case.kind in self.kinds and self.can_act(case)

    def can_act(self, case: Case) -> bool:
        """A scaler of this run has a scale that is next to nothing, or no number at all."""
        return any(not one.scale >= _TINY for one in case.step.run.scalers)

    def applied(self) -> AbstractContextManager[None]:
        return _held()


@contextmanager
def _held() -> Iterator[None]:
    """Every GradScaler's update leaves a scale of at least the floor, while entered."""
    from torch.amp.grad_scaler import GradScaler

    update = GradScaler.update

    def updated(self: Any, new_scale: Any = None) -> None:
        update(self, new_scale)
        if self._scale is not None:
            self._scale.nan_to_num_(nan=_FLOOR).clamp_(min=_FLOOR)

    GradScaler.update = updated  # type: ignore[method-assign]
    try:
        yield
    finally:
        GradScaler.update = update  # type: ignore[method-assign]
