"""Foresight: samples the vitals of a run, sees where they are going, and says so while the run is still healthy."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.findings import jsonable
from stayfinite.findings.subjects.outlook import Outlook, VitalSample
from stayfinite.watch.course import Course, headroom, room_of
from stayfinite.watch.verdict import StepVerdict
from stayfinite.watch.vitals.schedule import Schedule
from stayfinite.watch.vitals.vitals import Vitals

_MODULES_WRITTEN, _NEAREST = 48, 8
"""Always the same ones, and those nearest to their limit; all are measured."""


class Foresight:
    """Told when a step begins, when its gradients are there, and how it ended."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        note: Callable[..., None],
        *,
        several_ranks: bool,
        scale_floor: float,
    ) -> None:
        self._vitals = Vitals(models)
        self._schedule = Schedule(several_ranks=several_ranks)
        self._note, self._scale_floor = note, scale_floor
        self.course = Course()
        self._began: float | None = None
        self._sampling = False
        self._outlook: Outlook | None = None
        self._fresh = False
        self._said: list[str] = []
        self._recent: deque[bool] = deque(maxlen=100)
        self._halved = False  # the scaler skipped the last step
        self._written: tuple[str, ...] = ()

    def begin(self, step: int) -> None:
        """The first forward pass of a step is about to begin."""
        self._began = time.perf_counter()
        self._sampling = self._vitals.trouble is None and self._schedule.wants(step)
        if self._sampling:
            self._vitals.begin()
        elif self._vitals.attached:
            self._vitals.drop()

    def rest(self) -> None:
        """Forward passes that follow do not belong to the step."""
        if self._vitals.attached:
            self._vitals.rest()

    def gathered(
        self, optimizers: Sequence[Optimizer], step: int, *, update_was_made: bool = False
    ) -> Tensor | None:
        """The gradients of the step are there: what goes to the host with its verdict. Weights have not moved, unless
        the optimizer has evaluated the loss itself."""
        vector = self._vitals.gathered(optimizers) if self._sampling else None
        self._vitals.forget_updates(optimizers)
        expected = self._vitals.trouble is None and self._schedule.expects(step, sampling=self._sampling)
        if expected and not update_was_made:
            self._vitals.update_begins(optimizers)
        return vector

    def applied(self, step: int, verdict: StepVerdict) -> None:
        """The update was made and stays."""
        self._halved = False
        self._ended(step, verdict, applied=True)

    def refused(self, step: int, verdict: StepVerdict, *, by_scaler: bool = False) -> None:
        """The step failed: what it showed is not the signal of a healthy run, but it counts.

        `by_scaler`: its gradients overflowed at a loss scale that is halved now, which says nothing of the signal. From
        65536 to its floor that takes 16 steps: fewer than there are between two samples, so it is looked at more often.
        """
        alarmed, sampled, again = self.course.alarmed, self._sampling, by_scaler and self._halved
        self._ended(step, verdict, applied=False)
        self._halved = by_scaler
        self._schedule.urgent = self._schedule.urgent or again
        if not by_scaler:
            self.course.failed(step, alarmed=alarmed, sampled=sampled)

    def abandoned(self) -> None:
        self._vitals.drop()
        self._sampling = False

    def went_back(self, step: int) -> None:
        """The run goes on from an earlier state: what was growing there is not growing now."""
        self._outlook = None
        self.course.went_back(step)
        self._schedule.went_back(step)

    def largest_outputs(self) -> tuple[tuple[int, float], ...]:
        """Of the last samples: the step, and the largest output of any module."""
        sizes = [(s.step, [m.max for m in s.modules.values()]) for s in self.course.samples]
        return tuple((step, max(found)) for step, found in sizes if found)

    def has_news(self) -> bool:
        """Was a step sampled since this was last asked? With several ranks the same on all of them."""
        fresh, self._fresh = self._fresh, False
        return fresh

    def take_outlook(self) -> Outlook | None:
        """A forecast that nobody has heard yet."""
        outlook, self._outlook = self._outlook, None
        return outlook

    def close(self) -> None:
        self._vitals.drop()
        self._sampling = False

    def _ended(self, step: int, verdict: StepVerdict, *, applied: bool) -> None:
        self._recent.append(applied)
        self._vitals.update_ended(made=applied)
        if self._began is not None:
            self._schedule.lived(time.perf_counter() - self._began)
            self._began = None
        sampling, self._sampling = self._sampling, False
        if self._vitals.trouble is not None:
            for what in self._new([f"vitals are off: measuring them failed with {self._vitals.trouble}"]):
                self._note("warning", what=what)
        if not sampling or not self._vitals.is_ready:
            self._vitals.drop()
            return
        sample = self._vitals.sample(step, verdict.vitals)
        self._schedule.sampled(step, self._vitals.seconds)
        sample = _with_run(
            sample, verdict.scale, self._scale_floor, 1 - sum(self._recent) / len(self._recent)
        )
        self._write(sample)
        outlook = self.course.add(sample)
        self._schedule.urgent = self.course.is_urgent
        self._schedule.look_again(step, self.course.steps_left(step))
        self._outlook, self._fresh = outlook or self._outlook, True

    def _new(self, sentences: Sequence[str]) -> list[str]:
        """Those that the record does not have yet."""
        found = [sentence for sentence in sentences if sentence not in self._said]
        self._said += found
        return found

    def _write(self, sample: VitalSample) -> None:
        nearest = sorted(sample.modules, key=lambda name: headroom(sample.modules[name]))
        room = _MODULES_WRITTEN - _NEAREST - len(self._written)
        self._written += tuple(name for name in nearest if name not in self._written)[:room]
        facts = to_line(sample, {*self._written, *nearest[:_NEAREST]})
        unseen = self._new(self._vitals.unseen)
        if unseen:
            facts["unseen"] = unseen
        if self._schedule.may_write(len(json.dumps(jsonable(facts)))):
            self._note("vitals", **facts)


def _with_run(sample: VitalSample, scale: float | None, floor: float, skipped: float) -> VitalSample:
    return replace(sample, scale=scale, scale_floor=floor if scale is not None else None, skipped=skipped)


def to_line(sample: VitalSample, written: Set[str]) -> dict[str, Any]:
    """As run.jsonl has it: [max, rms, gain] by module, in the order of the model; what was not seen is left out."""
    chosen = {name: module for name, module in sample.modules.items() if name in written}
    line: dict[str, Any] = {
        "modules": {name: [_short(m.max), _short(m.rms), _short(m.gain)] for name, m in chosen.items()}
    }
    room = room_of(sample)
    if room < math.inf:
        line["headroom"] = _short(room)
    if sample.groups:
        line["groups"] = [{name: _short(value) for name, value in group.items()} for group in sample.groups]
    if sample.zeros:
        line["zeros"] = {name: _short(value) for name, value in sample.zeros.items()}
    if sample.logits is not None:
        line["logits"] = _short(sample.logits)
    if sample.exponents:
        line["exponents"] = {place: _short(value) for place, (value, _) in sample.exponents.items()}
    if sample.scale is not None:
        line["scale"] = sample.scale
    if sample.skipped:
        line["skipped"] = _short(sample.skipped)
    return line


def _short(value: float | None) -> float | None:
    return float(f"{value:.3g}") if value is not None else None
