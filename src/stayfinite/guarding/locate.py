"""From a refused step to the line where it went wrong: follow it once more, and explain what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings import Finding, Incident, Json, as_float, examine
from stayfinite.findings.ranking import rank
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.refused_step import RefusedStep
from stayfinite.findings.subjects.run_record import OptimizerFacts, StepRecord
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.facts import incident_of
from stayfinite.recover.recovery import Recovery
from stayfinite.recover.rng import RngState
from stayfinite.replay import Tracer
from stayfinite.replay.incident import to_incident
from stayfinite.watch.losses import as_loss

_SYMPTOMS = ("STA011", "STA012")
_AFTERMATH = 0.1
"""How likely state that went bad in a step is to be its cause, when the replay saw the value born."""


class Replay:
    """One refused step, followed op by op. Whatever it changes is put back when it ends."""

    def __init__(self, recovery: Recovery, attempt: Attempt) -> None:
        self._recovery = recovery
        self._attempt = attempt
        self._optimizers = attempt.optimizers
        self._tracer = Tracer()
        self._bad_loss: FailedStep | None = None
        self._bad_update: FailedStep | None = None

    def of_functions(self) -> FailedStep | None:
        """Call the functions that made the losses again; None if nothing fails this time."""
        window = self._attempt.window
        with self.prepared():
            for fn, batch in zip(window.functions, window.batches, strict=True):
                with self.following(batch):
                    loss = as_loss(fn()).total
                    self._recovery.scaling.scaled(loss / len(window.functions)).backward()  # type: ignore[no-untyped-call]
                    self.saw_loss(loss)
                    if self._attempt.update_was_bad and fn is window.functions[-1]:
                        self.try_update(self._attempt.make_update)
            return self.evidence()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """The state as it was before the step, and once more so afterwards; random numbers as the policy left them."""
        rng = RngState.capture()
        self._recovery.transaction.undo(restore_rng=True)
        self._clear()
        try:
            yield
        finally:
            self._tracer.stop()
            self._clear()
            self._recovery.transaction.undo(restore_rng=False)
            rng.restore()

    def _clear(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    @contextmanager
    def following(self, batch: Any) -> Iterator[None]:
        """Follow what is done with one batch."""
        self._tracer.start()
        try:
            self._tracer.note_batch(batch)
            yield
        finally:
            self._tracer.stop()

    def saw_loss(self, loss: Tensor) -> None:
        """The first loss that is not finite is what went wrong, if there is one."""
        with self._tracer.only_looking():
            finite = bool(torch.isfinite(loss.detach()).all())
        if not finite and self._bad_loss is None:
            self._bad_loss = self._tracer.failure(loss, "loss")

    def try_update(self, step: Callable[[], Any]) -> None:
        """Follow an update that was bad in itself, and take it back."""
        with self._tracer.only_looking():
            self._recovery.transaction.copy_before_update(self._optimizers)
        try:
            step()
            self._bad_update = self._tracer.failure()
        finally:
            with self._tracer.only_looking():
                self._recovery.transaction.undo_update(self._optimizers)

    def evidence(self) -> FailedStep | None:
        """What was seen; None if the step did not fail again."""
        return self._bad_loss or self._bad_update or self._tracer.failure()


def explain(
    refused: RefusedStep,
    evidence: FailedStep | None,
    optimizers: Sequence[Optimizer],
    action: str,
    history: list[dict[str, Json]],
    environment: dict[str, Json],
) -> Incident:
    """The incident: as the replay shows it, or as far as the guard can tell without one."""
    if evidence is None:
        return incident_of(refused, action, history, environment)
    step = replace(
        evidence,
        step=refused.step,
        history=tuple(_records(history)),
        optimizers=tuple(_optimizer(optimizer) for optimizer in optimizers),
    )
    incident = to_incident(step, _findings(refused, step), action)
    incident.observed = list(refused.observed)
    incident.trigger, incident.history, incident.environment = refused.trigger, history, environment
    return incident


def _findings(refused: RefusedStep, step: FailedStep) -> list[Finding]:
    """What the replay explains comes before what it has only brought about.

    The replay began from the state before the step. A value that was born in it is therefore the reason for an
    update or a buffer that this step made bad, and not their consequence.
    """
    traced, shown = list(examine(step)), list(examine(refused))
    if not traced or step.birth is None or step.birth.transition == "outside":
        return rank([*traced, *shown], one_per_cause=True)
    aftermath = [replace(f, confidence=_AFTERMATH) for f in shown if f.code in _SYMPTOMS]
    causes = [f for f in shown if f.code not in _SYMPTOMS]
    return [*rank([*traced, *causes], one_per_cause=True), *aftermath]


def _records(history: list[dict[str, Json]]) -> Iterator[StepRecord]:
    for line in history:
        step, rates = line.get("step"), line.get("lr")
        if isinstance(step, int):
            yield StepRecord(
                step,
                loss=as_float(line.get("loss")),
                grad_norm=as_float(line.get("grad_norm")),
                lr=as_float(rates[0]) if isinstance(rates, list) and rates else None,
                scale=as_float(line.get("scale")),
                update_ratio=as_float(line.get("update_ratio")),
                applied=line.get("action") == "none",
            )


def _optimizer(optimizer: Optimizer) -> OptimizerFacts:
    group = optimizer.param_groups[0]
    eps = group.get("eps")
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    state = [
        v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, Tensor) and v.dim()
    ]
    held = state or parameters
    return OptimizerFacts(
        kind=type(optimizer).__name__,
        lr=float(group.get("lr", 0.0)),
        eps=eps if isinstance(eps, float) else None,
        eps_in_dtype=float(torch.tensor(eps, dtype=held[0].dtype))
        if isinstance(eps, float) and held
        else None,
        param_dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        state_dtypes=tuple(sorted({str(v.dtype).removeprefix("torch.") for v in state})),
        steps=max((int(entry["step"]) for entry in optimizer.state.values() if "step" in entry), default=0),
        betas=tuple(group.get("betas", ())),
        weight_decay=float(group.get("weight_decay", 0.0)),
    )
