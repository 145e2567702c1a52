"""RunFiles: what a run leaves on disk as it goes. run.jsonl line by line, and a folder for every incident."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stayfinite.findings import Incident, Json
from stayfinite.watch.environment import memory_mb
from stayfinite.watch.incidents import Filed, IncidentFolder
from stayfinite.watch.recorder import Recorder
from stayfinite.watch.verdict import StepVerdict


class RunFiles:
    """Lines with an "event" tell of the run; the others are one a step."""

    def __init__(self, run_dir: Path | None, device: torch.device, listeners: Sequence[Any]) -> None:
        self._recorder = Recorder(run_dir, listeners=listeners)
        self._incidents = IncidentFolder(run_dir)
        self._device = device
        self._opened_by, self._closed = os.getpid(), False
        self.path = self._recorder.path

    @property
    def history(self) -> list[dict[str, Json]]:
        """The last steps."""
        return list(self._recorder.history)

    def step(
        self,
        step: int,
        verdict: StepVerdict,
        rates: list[float],
        started: float,
        action: str,
        what: str | None,
    ) -> dict[str, Any]:
        line: dict[str, Any] = {"step": step, "loss": _digits(verdict.own_loss)}
        if verdict.components:
            line["components"] = {name: _digits(value) for name, value in verdict.components.items()}
        line |= {"grad_norm": _digits(verdict.grad_norm), "lr": rates}
        if verdict.scale is not None:
            line["scale"] = verdict.scale
        if verdict.update_ratio is not None:
            line["update_ratio"] = _digits(verdict.update_ratio, 5)
        if verdict.observed:
            line["observed"] = {name: [*map(_digits, ends)] for name, ends in verdict.observed.items()}
        line["seconds"] = round(time.perf_counter() - started, 6)
        used = memory_mb(self._device)
        line["memory_mb"] = round(used, 1) if used is not None else None
        line["action"] = action
        if what is not None:
            line["what"] = what
        self._recorder.write(line, now=what is not None)
        return line

    def event(self, event: str, step: int, **facts: Any) -> None:
        self._recorder.event({"event": event, "step": step, **facts})

    def incident(self, incident: Incident, *, goes_on: bool) -> Filed:
        """File a failure; one that is known is only counted."""
        filed = self._incidents.file(incident, goes_on=goes_on)
        self.event("incident", incident.step, incident=filed.number, times=filed.times)
        return filed

    def folder_of(self, filed: Filed) -> Path | None:
        """Where an incident was filed; None for a run that leaves nothing on disk."""
        return self._incidents.root / filed.number if self._incidents.root is not None else None

    def close(self, step: int | None = None) -> None:
        """With the number of the next step the record says that the run has ended, and was not killed: once, and not
        on behalf of a fork of it.
        """
        if step is not None and not self._closed and os.getpid() == self._opened_by:
            self.event("end", step)
        self._closed = True
        self._recorder.close()


def _digits(value: float | None, digits: int = 9) -> float | None:
    """Nine digits are all that a float32 has: a record of a hundred thousand steps need not hold noise behind them."""
    return float(f"{value:.{digits}g}") if value is not None else None
