"""Plan: a run that starts small and scales up when its criteria hold. It never does so silently."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from stayfinite.recover.rates import lower_rates
from stayfinite.recover.state import TrainingState

Tell = Callable[..., None]
_LOOKS = 10
"""Criteria that do not hold yet are looked at again after a tenth of the stage's length, and told every tenth look."""
_SERIES = ("applied", "norms", "losses", "first_losses")


@dataclass(frozen=True, slots=True)
class Criteria:
    """When a stage has done its work. All that are given must hold, over the last `applied` updates of the stage.

    applied: so many updates were applied in the stage.
    success_rate: at least this share of its steps was applied.
    max_grad_norm: no gradient norm, before clipping, was larger.
    loss_falls: the typical loss is lower than at the beginning of the stage.
    """

    applied: int
    success_rate: float | None = None
    max_grad_norm: float | None = None
    loss_falls: bool = False

    def __post_init__(self) -> None:
        least = 8 if self.loss_falls else 1
        if self.applied < least:
            raise ValueError(
                f"Criteria(applied={self.applied}): at least {least} updates are needed to judge a stage by"
            )
        if self.success_rate is not None and not 0 < self.success_rate <= 1:
            raise ValueError(
                f"Criteria(success_rate={self.success_rate}): a share above 0 and up to 1 is needed"
            )
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"Criteria(max_grad_norm={self.max_grad_norm}): a positive number is needed")


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the run: its share of the configured learning rate, its clipping, and when it is over.

    `on_enter` is called whenever the stage begins, also when a rollback or a restore comes back to it.
    """

    name: str
    rate: float = 1.0
    clip_norm: float | None = None  # None: what the Guard was given
    until: Criteria | None = None  # None: to the end of the run
    on_enter: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        for what, value in (("rate", self.rate), ("clip_norm", self.clip_norm)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"Stage({self.name!r}, {what}={value}): a positive finite number is needed")


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages of a run, in order."""

    stages: Sequence[Stage]

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names:
            raise ValueError("Plan([]): at least one stage is needed")
        if len(set(names)) < len(names):
            raise ValueError(
                f"Plan: two stages have the same name ({', '.join(names)}); checkpoints go by it"
            )
        for stage in self.stages[:-1]:
            if stage.until is None:
                raise ValueError(
                    f"Plan: stage {stage.name!r} never ends, so the next one never begins; "
                    "give it until=Criteria(...)"
                )


class _Tally:
    """What a stage is judged by: its last `length` steps, and how it began."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.count = 0
        self.applied: deque[bool] = deque(maxlen=length)  # of the last steps
        self.norms: deque[float] = deque(maxlen=length)
        self.losses: deque[float] = deque(maxlen=length)
        self.first_losses: deque[float] = deque(maxlen=max(1, length // 4))

    def add(self, loss: float | None, grad_norm: float) -> None:
        self.count += 1
        self.applied.append(True)
        self.norms.append(grad_norm)
        if loss is not None:
            self.losses.append(loss)
            if len(self.first_losses) < max(1, self.length // 4):
                self.first_losses.append(loss)

    def missing(self, until: Criteria) -> list[str]:
        """The criteria that do not hold, in words."""
        found = []
        share = sum(self.applied) / len(self.applied)
        if until.success_rate is not None and share < until.success_rate:
            found.append(f"{share:.1%} of the steps were applied, {until.success_rate:.1%} are asked for")
        worst = max(self.norms)
        if until.max_grad_norm is not None and worst > until.max_grad_norm:
            found.append(f"a gradient norm of {worst:.4g} is above {until.max_grad_norm:.4g}")
        if until.loss_falls and not self.losses:
            found.append("no loss was seen, so it cannot be said to fall")
        elif until.loss_falls:
            first = median(self.first_losses)
            last = median(list(self.losses)[-len(self.first_losses) :])
            if not last < first:
                found.append(f"the loss does not fall: {first:.4g} at the stage's beginning, {last:.4g} now")
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, **{name: list(getattr(self, name)) for name in _SERIES}}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.count = saved["count"]
        for name in _SERIES:
            getattr(self, name).extend(saved[name])


class Staging:
    """Where a run is in its plan. Without a plan it does nothing."""

    def __init__(self, plan: Plan | None, state: TrainingState, tell: Tell) -> None:
        self._stages = tuple(plan.stages) if plan is not None else ()
        self._state, self._tell = state, tell
        self._factor = 1.0  # by which the rates stand multiplied now
        self._good = (0, 1.0)  # stage and factor of the copy to go back to
        self._index, self._tally, self._looks, self._done = 0, _Tally(1), 0, False

    def begin(self) -> None:
        """The run begins, and with it the first stage."""
        if self._stages:
            self._enter(0, "begins")

    @property
    def stage(self) -> Stage | None:
        return self._stages[self._index] if self._stages else None

    @property
    def factor(self) -> float:
        return self._factor

    def clip_norm(self, configured: float | None) -> float | None:
        """The stage's own, or the configured one."""
        own = self.stage.clip_norm if self.stage is not None else None
        return configured if own is None else own

    def applied(self, loss: float | None, grad_norm: float) -> None:
        """An update was applied."""
        self._tally.add(loss, grad_norm)

    def refused(self) -> None:
        """A step was refused."""
        self._tally.applied.append(False)

    def between_steps(self) -> None:
        """The moment to go on to the next stage, or to say why not."""
        stage = self.stage
        if stage is None or stage.until is None or self._done:
            return
        length = stage.until.applied
        if self._tally.count < length + self._looks * max(1, length // _LOOKS):
            return
        missing = self._tally.missing(stage.until)
        if not missing:
            self._tell_stage("is done", f"{self._tally.count} updates applied, all criteria hold")
            self._done = True
            if self._index + 1 < len(self._stages):
                self._enter(self._index + 1, "begins")
            return
        if self._looks % _LOOKS == 0:
            self._tell_stage("goes on", "; ".join(missing))
        self._looks += 1

    def _enter(self, index: int, how: str, *, rates: bool = True) -> None:
        """`rates`: bring the learning rates to the stage's share; else they are there already."""
        stage = self._stages[index]
        self._index, self._looks, self._done = index, 0, False
        self._tally = _Tally(stage.until.applied if stage.until is not None else 1)
        if rates and stage.rate != self._factor:
            lower_rates(self._state.optimizers, self._state.schedulers, stage.rate / self._factor)
            self._factor = stage.rate
        if stage.on_enter is not None:
            stage.on_enter()
        clip = "" if stage.clip_norm is None else f", gradients clipped at {stage.clip_norm:g}"
        self._tell_stage(how, f"learning rate times {self._factor:g}{clip}")

    def _tell_stage(self, how: str, why: str) -> None:
        stage = self._stages[self._index]
        text = f"stage {stage.name!r} ({self._index + 1} of {len(self._stages)}) {how}: {why}"
        self._tell("stage", text, stage=stage.name, rate=self._factor, clip_norm=stage.clip_norm)

    # -- the way back

    def remember(self) -> None:
        """A copy of the state was taken: the rates in it are those of this stage."""
        self._good = (self._index, self._factor)

    def go_back(self) -> None:
        """The copy was put back, and its rates with it. The stage is judged by what comes now."""
        index, self._factor = self._good
        if self._stages:
            self._enter(index, "begins again", rates=False)

    def state_dict(self) -> dict[str, Any] | None:
        if self.stage is None:
            return None
        return {
            "stage": self.stage.name,
            "factor": self._factor,
            "looks": self._looks,
            "done": self._done,
            "tally": self._tally.state_dict(),
        }

    def load_state_dict(self, saved: dict[str, Any] | None) -> None:
        """Go on where a checkpoint was. Its rates are loaded; they stand multiplied by its stage's factor."""
        if not self._stages:
            return
        names = [stage.name for stage in self._stages]
        self._factor = factor_of(saved)
        if saved is None or saved["stage"] not in names:
            unknown = (
                "" if saved is None else f" (the checkpoint's stage {saved['stage']!r} is not in this plan)"
            )
            self._enter(0, f"begins{unknown}")
            return
        self._enter(names.index(saved["stage"]), "goes on after a restore", rates=False)
        self._looks, self._done = saved["looks"], saved["done"]
        self._tally.load_state_dict(saved["tally"])


def factor_of(saved: dict[str, Any] | None) -> float:
    """By what the rates of a checkpoint stand multiplied."""
    return float(saved["factor"]) if saved is not None else 1.0
