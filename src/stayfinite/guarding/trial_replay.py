"""TrialReplay: a refused step once more with its update, in a child, where all that it changes is lost anyway."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.locate import Replay
from stayfinite.prove.trial import TrialResult
from stayfinite.recover.recovery import Recovery
from stayfinite.watch.finite import all_finite
from stayfinite.watch.losses import as_loss, split_aux
from stayfinite.watch.updates import UpdateSampler
from stayfinite.watch.watcher import Call, Window


def norm_is_finite(gradients: Sequence[torch.Tensor]) -> bool:
    """A norm that overflows is refused as a bad gradient is, and one bad gradient makes the norm bad."""
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    return not norms or bool(torch.isfinite(torch.linalg.vector_norm(torch.stack(norms))))


class TrialReplay(Replay):
    """Follows the step, or only asks whether something is bad."""

    def __init__(self, recovery: Recovery, attempt: Attempt) -> None:
        super().__init__(recovery, attempt)
        self._moved: list[tuple[int, float]] = []  # by updates, in sizes of the weights

    def with_update(self, healthy: Window | None) -> TrialResult:
        """Follow the step and its update; then a healthy one with what came of it."""
        calls, batches = self._attempt.window.calls, self._attempt.window.batches
        losses: list[tuple[int, float]] = []
        applied = 0
        with self.prepared():
            for call, batch in zip(calls, batches, strict=True):
                with self.following(batch):
                    loss = as_loss(split_aux(call())[0]).total
                    (loss / len(calls)).backward()  # type: ignore[no-untyped-call]
                    self.saw_loss(loss)
                    with self.only_looking():
                        losses.append((0, float(loss.detach())))
            found = self.evidence()
            if found is None:
                with self.following(None):
                    self.try_update(self._update)
                found, applied = self.evidence(), 1
            failures = [found] if found is not None else []
        steps = 0
        self._moved.clear()
        if not failures and healthy is not None:
            steps = 1
            if self._is_bad(calls) or self._updated_is_bad(healthy.calls):
                failures = [FailedStep(1, "state", "loss")]
        return TrialResult(
            failures=failures, losses=losses, steps=steps, applied=applied, moved=list(self._moved)
        )

    def _updated_is_bad(self, following: Sequence[Call]) -> bool:
        """Make the update of the gradients that are there, for good, and ask a further batch."""
        with self._measured(self._parameters()):
            self._update()
        return self._is_bad(following)

    def _parameters(self) -> list[torch.Tensor]:
        return [p for o in self._optimizers for group in o.param_groups for p in group["params"]]

    @contextmanager
    def _measured(self, parameters: Sequence[torch.Tensor]) -> Iterator[None]:
        """An update of the failing step, and how far it moves the weights: finite may still be no training."""
        with self.only_looking():
            sampler = UpdateSampler(parameters)
            sampler.before()
        yield
        with self.only_looking():
            moved = sampler.after()
        if moved is not None:
            self._moved.append((0, float(moved)))

    def _update(self) -> None:
        """Clipped as the guard clips."""
        if self._attempt.clip is not None:
            with self.only_looking():
                trained = self._attempt.trained()
                if trained:
                    torch.nn.utils.clip_grad_norm_(trained, self._attempt.clip)
        self._attempt.make_update()

    def fails(self, calls: Sequence[Call], *, from_now: bool = False) -> bool:
        """The same without following: only whether something is bad."""
        if from_now:
            return self._is_bad(calls)
        with self.prepared():
            return self._is_bad(calls)

    def _is_bad(self, calls: Sequence[Call]) -> bool:
        self._clear()
        for call in calls:
            loss = as_loss(split_aux(call())[0]).total
            if not math.isfinite(float(loss.detach().sum())):
                return True
            (loss / len(calls)).backward()  # type: ignore[no-untyped-call]
        parameters = self._parameters()
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not norm_is_finite(gradients):
            return True
        if not self._attempt.update_was_bad:
            return False
        with self._taken_back():
            self._update()
            return not all_finite(parameters)
