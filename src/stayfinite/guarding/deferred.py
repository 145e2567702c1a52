"""sync=False: the device decides, the host learns of it one step later."""

from __future__ import annotations

from torch import Tensor

from stayfinite.guarding.attempt import Attempt, Outcome
from stayfinite.guarding.run import GuardedRun
from stayfinite.recover.rng import RngState
from stayfinite.watch.risk import update_may_break


class DeferredUpdate:
    """Holds the one update whose verdict is still on its way."""

    def __init__(self, run: GuardedRun) -> None:
        self._recovery, self._watcher = run.recovery, run.watcher
        self._pending: Attempt | None = None
        self._known: set[int] = set()  # parameters that have been updated
        self._rng_before: RngState | None = None
        self._rng_after: RngState | None = None
        self._scale_before: list[Tensor] = []

    def must_wait(self, attempt: Attempt) -> bool:
        """Steps whose skipping the device cannot be left to: the first of an optimizer, which makes its state (fused
        SGD that skips it keeps momentum that nobody initialised), and one whose forward pass registered buffers."""
        if attempt.bad_settings or self._recovery.transaction.has_new_buffers:
            return True
        if any(update_may_break(optimizer) for optimizer in attempt.optimizers):
            return True
        return not all(id(p) in self._known for p in attempt.trained())

    def made(self, attempt: Attempt) -> None:
        """An update that was waited for is made: its parameters have their state now."""
        self._known.update(id(p) for p in attempt.trained())

    def make(self, attempt: Attempt, clip_norm: float | None) -> None:
        """A fused optimizer with `found_inf` set leaves parameters, moments and step counts as they were."""
        bad = attempt.numbers.bad()
        self._rng_before = self._recovery.transaction.rng
        attempt.numbers.send()
        if clip_norm is not None:
            attempt.reading.clip(clip_norm)
        for optimizer in attempt.optimizers:
            optimizer.grad_scale, optimizer.found_inf = None, bad  # type: ignore[attr-defined]
        try:
            self._watcher.measure(attempt.make_update, attempt.trained())
        finally:
            for optimizer in attempt.optimizers:
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        self._recovery.transaction.undo_where(bad.bool())
        self._scale_before = self._recovery.scaling.on_device()
        self._recovery.scaling.update()
        self._pending, self._rng_after = attempt, RngState.capture()

    def outcome(self) -> Outcome | None:
        """Wait for the verdict, if one is pending."""
        if self._pending is None:
            return None
        attempt, self._pending = self._pending, None
        verdict = attempt.numbers.verdict()
        return Outcome(attempt, verdict, self._watcher.trouble(verdict))

    def put_back_scale(self) -> None:
        """A loss that is not finite says nothing about the loss scale."""
        self._recovery.scaling.put_back(self._scale_before)

    @property
    def random_numbers_before(self) -> RngState | None:
        """Those of the refused step; None if somebody has drawn numbers since, which cannot be drawn anew."""
        return self._rng_before if RngState.capture() == self._rng_after else None

    def forget(self) -> None:
        self._pending = None
