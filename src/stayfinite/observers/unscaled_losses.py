"""UnscaledLosses: backward passes of losses that no scaler has scaled, into gradients that one then unscales."""

from __future__ import annotations

from collections.abc import Sequence

from stayfinite.findings.subjects.run_record import Place


class UnscaledLosses:
    """Counts on the host only: which losses were scaled, and whether each of these is what a backward pass began at.

    Where one is not (a multiple of it was, or several together), a pass from an unknown tensor may be scaled as well,
    and nothing is said.
    """

    def __init__(self) -> None:
        self._scaled = 0  # losses that were scaled since the scale was updated
        self._begun_at = 0  # of these, where a backward pass began
        self._pending: dict[int, Place] = {}  # by optimizer: of what its next update is made
        self._untouched: set[int] = set()  # optimizers whose next update is made of nothing that was scaled

    def scaled(self, losses: int) -> None:
        self._scaled += losses

    def is_unscaled(self, known: Sequence[bool], scalar: bool) -> bool:
        """A backward pass is over; `known`: of each tensor it began at, whether a scaler gave it."""
        self._begun_at += sum(known)
        return scalar and not any(known)

    def answered(self, optimizer: int, places: Sequence[Place | None]) -> None:
        """An update is about to be made of losses: the lines of those that were not scaled, None for the others."""
        self._pending.pop(optimizer, None)
        self._untouched.discard(optimizer)
        unscaled = [place for place in places if place is not None]
        if unscaled:
            self._pending[optimizer] = unscaled[-1]
            if len(unscaled) == len(places):
                self._untouched.add(optimizer)

    def is_untouched(self, optimizer: int) -> bool:
        """Nothing in the gradients of this optimizer holds a scale: it may well step by itself."""
        return optimizer in self._untouched and self._scaled == self._begun_at

    def stepped(self, optimizer: int) -> Place | None:
        """A scaler has stepped the optimizer: where a loss that it took part of the scale away from went backward."""
        place = self._pending.pop(optimizer, None)
        return place if self._scaled == self._begun_at else None

    def updated(self) -> None:
        self._scaled = self._begun_at = 0
