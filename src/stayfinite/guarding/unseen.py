"""sync=False: the device decides, the host learns of it one step later."""

from __future__ import annotations

from stayfinite.guarding.attempt import Attempt, Outcome
from stayfinite.guarding.run import GuardedRun


class Unseen:
    """Holds the one update whose verdict is still on its way."""

    def __init__(self, run: GuardedRun) -> None:
        self._recovery, self._watcher = run.recovery, run.watcher
        self._pending: Attempt | None = None

    def make(self, attempt: Attempt, clip_norm: float | None) -> None:
        """A fused optimizer with `found_inf` set leaves parameters, moments and step counts as they were."""
        bad = attempt.numbers.bad()
        attempt.numbers.send()
        if clip_norm is not None:
            attempt.reading.clip(clip_norm)
        for optimizer in attempt.optimizers:
            optimizer.grad_scale, optimizer.found_inf = None, bad  # type: ignore[attr-defined]
        try:
            self._watcher.measure(attempt.make_update)
        finally:
            for optimizer in attempt.optimizers:
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        self._recovery.transaction.undo_where(bad.bool())
        self._recovery.scaling.update()
        self._pending = attempt

    def outcome(self) -> Outcome | None:
        """Wait for the verdict, if one is pending."""
        if self._pending is None:
            return None
        attempt, self._pending = self._pending, None
        verdict = attempt.numbers.verdict()
        return Outcome(attempt, verdict, self._watcher.trouble(verdict))

    def forget(self) -> None:
        self._pending = None
