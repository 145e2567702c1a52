"""Audit: what the start of a run shows to be wrong, said once, before it can do harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from stayfinite.findings import Finding, Severity, examine, worst_first
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import ClipCall, LoadEvent, Place, RunRecord
from stayfinite.findings.subjects.setup import HeldTensor
from stayfinite.recover.state import TrainingState
from stayfinite.watch.setup import examine_setup, watch_autocast

_UPDATE_MAY_BREAK = ("STA003", "STA004")
"""Rules whose finding means: this optimizer can make a weight NaN from finite gradients."""


class Audit:
    """Examines the set-up when the guard is made, and again when the first forward pass has shown more."""

    def __init__(
        self,
        state: TrainingState,
        device: torch.device,
        say: Callable[[Finding], None],
        loads: Sequence[LoadEvent] = (),
    ) -> None:
        self.findings: list[Finding] = []
        self._device = device
        self._say = say
        self._autocast_seen: set[str] = set()
        brought = {name for load in loads for name in (*load.nonfinite, *(name for name, _ in load.enormous))}
        self._setup = examine_setup(
            state.tensors(), state.optimizers, state.parameter_names, state.scaler, brought
        )
        self._examine()

    @property
    def began(self) -> tuple[HeldTensor, ...]:
        """Weights and buffers that looked wrong at the start, and that no load is known to have brought so."""
        return tuple(t for t in self._setup.tensors if t.kind in ("parameter", "buffer") and not t.loaded)

    def _examine(self) -> None:
        self._report(examine(self._setup))

    def _report(self, findings: list[Finding]) -> None:
        known = {(finding.code, finding.message) for finding in self.findings}
        for finding in worst_first(findings):
            if (finding.code, finding.message) not in known:
                self.findings.append(finding)
                self._say(finding)

    @property
    def optimizer_is_risky(self) -> bool:
        """An update may be bad in itself, so it is made with a copy at hand."""
        return any(
            finding.code in _UPDATE_MAY_BREAK and finding.severity is not Severity.INFO
            for finding in self.findings
        )

    def first_forward(self) -> AbstractContextManager[None]:
        """Whether autocast is on, and in which dtype, shows only in a forward pass: watch the first."""
        if self._setup.forward_seen:
            return nullcontext()
        return watch_autocast(self._device.type, self._autocast_seen)

    def forward_was_seen(self) -> None:
        if not self._setup.forward_seen:
            dtype = min(self._autocast_seen, default=None)
            self._setup = replace(self._setup, forward_seen=True, autocast=dtype)
            self._examine()

    def saw_scaled_clip(self) -> None:
        """A loop clips gradients that are still multiplied by the loss scale."""
        clip = ClipCall(Place(), calls=1, scaled=True)
        self._report(examine(FailedStep(0, "state", "parameter", RunRecord(clips=(clip,))), only=("STA008",)))
