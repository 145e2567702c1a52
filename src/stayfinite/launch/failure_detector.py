"""FailureDetector: where a script is checked. Backward passes, updates, numbers the script reads, errors it meets."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.run_record import Place, RunRecord, StepRecord
from stayfinite.launch.suspicions import Suspicion, Suspicions
from stayfinite.launch.traced_batch import TracedBatch
from stayfinite.observers.history import here
from stayfinite.observers.run_observers import RunObservers
from stayfinite.replay import Tracer
from stayfinite.replay.measure import holds_casts_of_bad, is_bad, measurable
from stayfinite.replay.op_journal import NO_ROOTS
from stayfinite.replay.tracer import is_unfollowed, unfollowed

_JUMP, _HUGE = 1e4, 1e8  # a gradient norm this much above its median, and this large, is worth a second look
_ENOUGH_HISTORY = 8


class FailureDetector:
    """Turns what a script meets into suspicions, with evidence wherever the tracer is on."""

    def __init__(self, observers: RunObservers, tracer: Tracer) -> None:
        self.observers, self.tracer = observers, tracer
        self.history, self.suspicions = observers.history, Suspicions()
        self.guarded = False  # a guard looks at losses and gradients
        self.reading_ahead = False  # a framework's loader reads batches that the script does not have yet
        self._batch = TracedBatch(tracer)
        # a number that the script looks at, and its step
        self._checked: tuple[int, torch.Tensor] | None = None
        self._arrivals_seen = self._raised_seen = 0
        self._loss_is_bad = False
        self._by_birth: dict[int, Suspicion] = {}
        # the last error of a function that has not gone well since
        self._raised_by: dict[Any, Suspicion] = {}
        self.healthy_until = -1  # journal entries before this number were followed by a healthy step
        self.history.listeners.append(self._step_is_over)

    def install(self) -> None:
        for event, around in (
            ("backward", self._backward),
            ("grad", self._grad),
            ("batch", self._next_batch),
            ("number_read", self._number_read),
            ("number_checked", self._number_checked),
            ("distribution", self._distribution),
            ("library_check", self._library_check),
        ):
            self.observers.hear(event, around)
        # An error that the script catches keeps the bad gradient out of the weights as well as a check does.
        self.observers.clips.on_error = self.suspicions.went_on

    # -- batches

    def _next_batch(self, original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        if not self.reading_ahead:
            self.saw_batch(batch)
        return batch

    def saw_batch(self, batch: Any) -> None:
        """The script goes on with this batch."""
        self._look_at_checked()
        if self.tracer.active:
            self._batch.note(batch)
            self.history.running.input_absmax = self._batch.absmax()

    # -- backward

    def _backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        self._checked = None  # what the script looked at is trained on
        if self.tracer.active or not self.guarded:
            self.check_losses(tensors if isinstance(tensors, (list, tuple)) else [tensors])
        if self.tracer.active:
            self.history.running.input_absmax = self._batch.absmax()
        result = original(tensors, *args, **kwargs)
        self.note_arrivals()
        return result

    def _grad(self, original: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(outputs, *args, **kwargs)
        if self.tracer.active:
            self.check_losses(outputs if isinstance(outputs, (list, tuple)) else [outputs], quietly=True)
            for gradient in result:
                if isinstance(gradient, torch.Tensor):
                    self._suspect_tensor(gradient, "gradient")
        return result

    def check_losses(self, tensors: Iterable[Any], *, quietly: bool = False) -> None:
        """Losses that no guard looks at."""
        self._loss_is_bad = False
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or not measurable(tensor):
                continue
            unscaled = self.observers.scalers.before_scaling(tensor)
            with unfollowed():
                if tensor.numel() == 1 and not quietly:
                    loss = float((tensor if unscaled is None else unscaled).detach())
                    self.history.running.losses.append(loss)
                bad = is_bad(tensor)
                # A scaled loss that overflows is what a GradScaler is for; a loss that is bad before scaling is not.
                expected = bad and unscaled is not None and not is_bad(unscaled)
            if bad:
                self._loss_is_bad = True
                self._suspect_tensor(tensor, "loss", expected=expected)

    def _is_scaled(self) -> bool:
        return any(seen.scaled for seen in self.observers.scalers.known)

    def _suspect_tensor(self, tensor: torch.Tensor, kind: str, *, expected: bool = False) -> None:
        roots = self.tracer.roots_of(tensor)
        known = self._known(roots)
        if known is not None:
            known.again(touched=False)
            return
        evidence = self.tracer.failure(tensor, kind) if self.tracer.active else None
        if evidence is None and not is_bad(tensor):
            return
        self._suspect(kind, evidence, roots=roots, expected=expected)

    def note_arrivals(self, step: int | None = None) -> None:
        """Bad values that reached gradients, parameters or buffers since the last look, in this step."""
        noticed = self.tracer.follower.noticed
        new, self._arrivals_seen = noticed.arrivals[self._arrivals_seen :], len(noticed.arrivals)
        for arrival in new:
            lasting = arrival.kind != "gradient"
            swollen = not arrival.roots and arrival.swell is not None
            if self._loss_is_bad and not lasting:
                continue  # the loss is the failure; its gradients only follow
            known = self._known(arrival.roots)
            if known is not None:
                known.again(touched=lasting)
                continue
            evidence = self.tracer.failure_at(arrival)
            if evidence is not None:
                expected = arrival.kind == "gradient" and self._is_scaled()
                kind = "spike" if swollen else arrival.kind
                self._suspect(
                    kind, evidence, touched=lasting, expected=expected, roots=arrival.roots, step=step
                )

    def _known(self, roots: frozenset[int]) -> Suspicion | None:
        """The failure that already stands for one of these births; a run full of NaN has thousands of repeats."""
        return next((self._by_birth[number] for number in sorted(roots) if number in self._by_birth), None)

    # -- steps

    def _step_is_over(self, record: StepRecord) -> None:
        """A step is on record; one that was refused is told by its guard."""
        self._checked = None
        self.note_arrivals(record.step)  # what the update did belongs to the step that it ended
        norm = record.grad_norm
        numbers = [n for n in (record.loss, norm) if n is not None]
        healthy = all(map(math.isfinite, numbers)) and not self._loss_is_bad
        if record.applied and (numbers or self._loss_is_bad):
            if healthy:
                self._look_for_a_jump(record)
                self.suspicions.went_on()
                self.healthy_until = self.tracer.follower.journal.next_number
            else:
                if not self.tracer.active:
                    bad_loss = record.loss is not None and not math.isfinite(record.loss)
                    self._suspect("loss" if bad_loss else "gradient", None, touched=True, step=record.step)
                self.suspicions.stepped_on(record.step)
        self._loss_is_bad = False
        self.tracer.next_step(self.history.step)

    def _look_for_a_jump(self, record: StepRecord) -> None:
        norm = record.grad_norm
        norms = sorted(r.grad_norm for r in self.history.recent if r.grad_norm is not None)[:-1]
        if norm is None or self.tracer.active or len(norms) < _ENOUGH_HISTORY:
            return
        if norm > _HUGE and norm > _JUMP * norms[len(norms) // 2]:
            self._suspect("spike", None, step=record.step)

    def step_was_skipped(self, kind: str, step: int) -> None:
        """Skipping is a GradScaler's business when the scale was too large, not when no scale would have helped."""
        if not self.suspicions.of_step(step):
            self._suspect(kind, None, step=step)
        self.suspicions.stepped_on(step, whatever_the_scale=True)

    def step_was_refused(self, kind: str, step: int, evidence: FailedStep | None) -> None:
        """The script called for an update that would have made the weights bad, and did not get it."""
        self.suspicions.stepped_on(step)
        if evidence is not None:
            self.suspicions.forget_unlocated(step)
        elif self.suspicions.goes_on(kind, step):
            return
        if evidence is not None or not self.suspicions.of_step(step):
            self._suspect(kind, evidence, touched=True, step=step)

    def buffers_were_bad(self, step: int) -> None:
        """A step that was not applied had left NaN or Inf in buffers: unguarded, evaluation would be dead."""
        if not self.suspicions.outlasts(step):
            self._suspect("buffer", None, touched=True, step=step)

    # -- numbers and errors ------------------------------------------------------------------------------

    def _number_read(self, original: Any, tensor: torch.Tensor) -> Any:
        value = original(tensor)
        if torch.compiler.is_compiling():
            return value
        if isinstance(value, float) and not math.isfinite(value):
            self._script_saw(tensor)
        return value

    def _number_checked(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """isfinite, isnan, isinf of a single number. It is looked at later, if the script makes nothing of it."""
        result = original(tensor, *args, **kwargs)
        if (
            not self.tracer.active
            and not is_unfollowed()
            and isinstance(tensor, torch.Tensor)
            and tensor.numel() == 1
            and tensor.requires_grad
            and not torch.compiler.is_compiling()
        ):
            self._look_at_checked()
            self._checked = self.history.step, tensor.detach()
        return result

    def _look_at_checked(self) -> None:
        """A number that the script has looked at, and trained on nothing since."""
        checked, self._checked = self._checked, None
        if checked is not None:
            with unfollowed():
                bad = is_bad(checked[1])
            if bad:
                self._suspect("loss", None, step=checked[0])

    def _script_saw(self, tensor: torch.Tensor) -> None:
        # With the tracer on, the value's own history decides.
        # A number without a graph behind it (a metric, a candidate under no_grad) is nothing that is trained on.
        if not self.tracer.active and not is_unfollowed() and tensor.requires_grad:
            self._suspect("loss", None)

    def finish(self) -> None:
        """The script is over."""
        self._look_at_checked()
        self.note_arrivals()
        self.note_raised()

    def _distribution(self, original: Any, distribution: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(distribution, *args, **kwargs)
        except ValueError as error:
            failure = Failure(type(error).__name__, str(error), here())
            parameters = [v for v in vars(distribution).values() if isinstance(v, torch.Tensor)]
            bad = next((p for p in parameters if is_bad(p)), None)
            evidence = (
                self.tracer.failure(bad, "exception") if bad is not None and self.tracer.active else None
            )
            if evidence is None and bad is None:
                evidence = FailedStep(self.history.step, "forward", "exception", failure=failure)
            if evidence is not None:
                self._suspect("exception", replace(evidence, failure=failure), caught=True)
            elif not self.tracer.active:
                self._suspect("exception", None, caught=True)  # where it became bad, a second run may tell
            raise

    def _library_check(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks that torch makes in Python; an error of theirs counts when a rule knows what it means."""
        try:
            result = original(*args, **kwargs)
        except (ValueError, RuntimeError, AssertionError, IndexError) as error:
            if any(one.error is error for one in self.tracer.follower.noticed.raised):
                raise  # an op raised it, with its values: note_raised tells it
            failure = Failure(type(error).__name__, str(error), here())
            evidence = FailedStep(self.history.step, "forward", "exception", failure=failure)
            given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
            with unfollowed():
                # What was given NaN has a history of its own, which the error does not tell.
                bad = any(is_bad(value) or holds_casts_of_bad(value) for value in given)
            if not bad and explain(evidence):
                self._raised_by[original] = self._suspect("exception", evidence, caught=True)
            elif bad and not self.tracer.active:
                self._raised_by[original] = self._suspect("exception", None, caught=True)
            raise
        if self._raised_by and (suspicion := self._raised_by.pop(original, None)) is not None:
            self.suspicions.withdraw(suspicion)  # the script tried again, and it went well
        return result

    def note_raised(self) -> None:
        """Errors raised by ops; only those that values explain count, an ordinary bug is none of ours."""
        raised = self.tracer.follower.noticed.raised
        new, self._raised_seen = raised[self._raised_seen :], len(raised)
        for one in new:
            birth = one.birth
            by_value = birth.facts.get("invalid") or any(not operand.finite for operand in birth.operands)
            domain = birth.facts.get("outside") or "LinAlgError" in type(one.error).__name__
            place = Place(birth.birth.file, birth.birth.line)
            failure = Failure(type(one.error).__name__, str(one.error), place)
            evidence = self.tracer.failure_of(failure, one)
            if evidence is None or not (by_value or domain or explain(evidence)):
                continue
            self._suspect("exception", evidence, caught=True, step=one.step, went_on=one.recovered)

    def note_results(self) -> None:
        """At the end: bad values that the script was given and nothing was computed from."""
        for entry, evidence in self.tracer.results():
            birth = evidence.birth
            if birth is None or (entry.loss_like and self.suspicions.raised_in(entry.step)):
                continue  # a term that was finished before an error ended the step is not its loss
            if entry.loss_like:
                self._suspect("loss", evidence, step=entry.step, went_on=entry.id < self.healthy_until)
            elif birth.transition not in ("deliberate", "outside", "amplified"):
                self._suspect("result", evidence, step=entry.step)

    def _suspect(
        self,
        kind: str,
        evidence: FailedStep | None,
        *,
        touched: bool = False,
        expected: bool = False,
        caught: bool = False,
        step: int | None = None,
        went_on: bool = False,
        roots: frozenset[int] = NO_ROOTS,
    ) -> Suspicion:
        at = self.history.step if step is None else step
        if evidence is not None:
            self.history.running.input_absmax = self._batch.absmax()
            run = RunRecord(history=self.history.so_far())
            evidence = replace(evidence, step=at, run=run, batch=self._batch.operands())
        suspicion = self.suspicions.add(
            Suspicion(
                kind,
                at,
                evidence,
                touched_state=touched,
                expected=expected,
                caught=caught,
                progress=went_on,
                seconds=time.monotonic() - self.history.started,
            )
        )
        births = self.tracer.follower.births
        for number in roots:
            if number in births and births[number].transition != "deliberate":
                self._by_birth[number] = suspicion
        return suspicion
