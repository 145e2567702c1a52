"""Redraw: which random numbers come after a refused step, so that a bad batch that was drawn is not drawn for ever."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from stayfinite.guarding.next_forward import NextForward
from stayfinite.recover.rng import RngState
from stayfinite.watch.finite import tensors_in
from stayfinite.watch.watcher import Window


class Redraw:
    """A refused step leaves random numbers as if it had never been: what the batch was made of was not used up.

    Where the loop itself draws the batch, it draws the same one again. So a second refusal in a row from the same
    numbers and with the same tensors goes on behind the draw: with the numbers as they were at the first forward pass
    of that step. The next refusals of such a loop do so at once. A third in a row leaves what was drawn drawn.
    """

    def __init__(self) -> None:
        self._from: RngState | None = None  # where the last refused step began
        self._with: list[weakref.ref[Tensor]] = []  # the tensors that it was given
        self._in_a_row = 0
        self._loop_draws = False  # batches, as a refusal has shown
        self._next_forward = NextForward()
        self._at_forward: RngState | None = None

    def step_begins(self) -> None:
        """Hear when its forward pass begins, if that may be asked for."""
        self._at_forward = None
        if self._in_a_row == 1 or self._loop_draws:
            self._next_forward.wait(self._forward_begins)

    def step_ends(self) -> None:
        """Nothing stays hooked."""
        self._next_forward.stop()

    def _forward_begins(self) -> None:
        if torch.is_grad_enabled():  # without: a look at other data before the batch is drawn
            self._at_forward = RngState.capture()

    def refused(self, began: RngState | None, window: Window) -> RngState | None:
        """The numbers to go on with; None: with those there are."""
        given = [tensor for batch in window.batches for _, tensor in tensors_in(batch)]
        given += [tensor for call in window.calls for tensor in call.tensors()]
        again = began is not None and began == self._from and self._was_given(given)
        self._in_a_row = self._in_a_row + 1 if again else 1
        self._from, self._with = began, [weakref.ref(tensor) for tensor in given]
        if self._in_a_row == 2 and self._at_forward is not None:
            self._loop_draws = self._at_forward != began
        if self._in_a_row == 1 and not (self._loop_draws and self._at_forward is not None):
            return began
        return self._at_forward if self._in_a_row <= 2 else None

    def applied(self) -> None:
        """The numbers have led to a good step."""
        self._from, self._in_a_row = None, 0

    def _was_given(self, given: list[Tensor]) -> bool:
        return len(given) == len(self._with) and all(
            before() is now for before, now in zip(self._with, given, strict=True)
        )
