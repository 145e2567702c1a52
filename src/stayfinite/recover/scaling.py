"""Scaling: a GradScaler (or none) by its own rules, except that its scale has a floor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Scaling:
    """Does nothing where there is no enabled scaler."""

    def __init__(self, scaler: Any, floor: float) -> None:
        self._scaler = scaler
        self.floor = floor
        self._before_refusal: tuple[dict[str, Any], bool] | None = None
        self._refused: set[int] = set()  # optimizers of refused steps, since the last update()
        self._last_finite: float | None = None

    @property
    def on(self) -> bool:
        return self._scaler is not None and bool(self._scaler.is_enabled())

    def scaled(self, loss: Tensor) -> Tensor:
        if not self.on:
            return loss
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def scale(self, device: torch.device) -> Tensor | None:
        """The present scale as a tensor on the device, without asking the host for it."""
        if not self.on:
            return None
        scale = self._scaler._scale  # not through scale(): somebody may listen to that
        if isinstance(scale, Tensor):
            return scale.to(device)
        return torch.full((), float(self._scaler.get_scale()), device=device)

    def now(self) -> float:
        """The present scale."""
        return float(self._scaler.get_scale()) if self.on else 1.0

    def unscale(self, optimizers: Sequence[Optimizer]) -> None:
        """Divide the gradients by the scale, unless the user's loop has done it."""
        if self.on:
            for optimizer in optimizers:
                if not self.is_unscaled(optimizer):
                    self._scaler.unscale_(optimizer)

    def is_unscaled(self, optimizer: Optimizer) -> bool:
        """Has unscale_ been called for this optimizer since the last update()?"""
        stage = self._scaler._per_optimizer_states[id(optimizer)]["stage"]
        return bool(stage.name != "READY")

    def mark_overflow(self, optimizers: Sequence[Optimizer]) -> None:
        """Gradients beside those of these optimizers overflowed: `update` must halve the scale for them."""
        if self.on:
            for optimizer in optimizers:
                found = self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
                for flag in found.values():
                    flag.fill_(1.0)

    def abandon(self, optimizers: Sequence[Optimizer]) -> None:
        """A step broke off: what was unscaled for it is forgotten, so that the next one can begin."""
        if self.on:
            for optimizer in optimizers:
                self._scaler._per_optimizer_states.pop(id(optimizer), None)

    def update(self) -> None:
        if self.on:
            self._scaler.update()

    def after_overflow(self, scale: float | None) -> float | None:
        """What the scaler makes of its scale when a step overflows."""
        return scale * float(self._scaler.get_backoff_factor()) if self.on and scale is not None else None

    def is_ordinary_backoff(self, scale: float | None) -> bool:
        """An overflow after which the halved scale is still above the floor: the scaler's own business."""
        lower = self.after_overflow(scale)
        return lower is not None and self.floor <= lower < math.inf

    def saw(self, scale: float | None) -> None:
        """The scale of a step; the last one that was a number is what a broken one is repaired with."""
        if scale is not None and 0 < scale < math.inf:
            self._last_finite = scale

    def repair(self) -> str | None:
        """A scale of NaN, Inf or nothing makes every gradient bad and never recovers: put a good one in its place.

        Gives a sentence if it did.
        """
        if not self.on:
            return None
        scale = float(self._scaler.get_scale())
        if 0 < scale < math.inf:
            return None
        good = max(self.floor, self._last_finite or self.floor)
        self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": good, "_growth_tracker": 0})
        return f"the loss scale was {scale}; it is {good:g} again"

    def on_device(self) -> list[Tensor]:
        """Scale and growth as they are, without asking the host."""
        if not self.on or self._scaler._scale is None:
            return []
        return [self._scaler._scale.clone(), self._scaler._growth_tracker.clone()]

    def put_back(self, before: list[Tensor]) -> None:
        if before:
            self._scaler._scale.copy_(before[0])
            self._scaler._growth_tracker.copy_(before[1])

    def hold_floor(self) -> None:
        """Lift a scale that has fallen through its floor."""
        if self.on and self._scaler.get_scale() < self.floor:
            self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": self.floor})

    def refused(self, optimizers: Sequence[Optimizer], *, overflow: bool) -> None:
        """A step was refused: remember the scaler as it is, for `settle_refusal`."""
        if self.on:
            self._before_refusal = (self._scaler.state_dict(), overflow)
            self._refused.update(id(optimizer) for optimizer in optimizers if not overflow)

    @property
    def has_refused(self) -> bool:
        """A step was refused since the last update()."""
        return self._before_refusal is not None

    def prepare_update(self) -> bool:
        """Before a loop's own update(): is anything left for it to do, besides steps that were refused?

        A refused step that is no overflow says nothing of the scale; other optimizers of the loop go on with theirs.
        """
        if not self._refused:
            return True
        states = self._scaler._per_optimizer_states
        for number in self._refused:
            states.pop(number, None)
        self._refused.clear()
        self._before_refusal = None
        return any(state["found_inf_per_device"] for state in states.values())

    def settle_refusal(self, *, for_now: bool = False) -> None:
        """After update() of a refused step: an overflow has halved the scale, which stops at the floor; anything
        else leaves the scaler as it was."""
        if not self.on or self._before_refusal is None:
            return
        before, overflow = self._before_refusal
        if not for_now:  # in the middle of a body that may still call update()
            self._before_refusal = None
            self._refused.clear()
        if not overflow and 0 < before["scale"] < math.inf:
            self._scaler.load_state_dict(before)
        else:
            self.hold_floor()
