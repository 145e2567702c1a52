"""The small training of a trial: its parts, what goes wrong in it, and the loop body as a user would write it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from trials import tables
from trials.bits import bits
from trials.tables import CONTINUE, DATA_FAULTS, GRADIENT_FAULTS, LEFT, Criterion, Spec

from stayfinite import Guard, Policy

EPOCH = 3
"""Updates in an epoch."""
POLICY = Policy(lower_lr_after=None, rollback_after=None, stop_after=10)


class Break(Exception):
    """The body is left as the fault says: by break, close or continue."""


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@dataclass
class Turn:
    """One loss with its optimizers and what goes with them. Only a GAN has two of them."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizers: list[Any]
    schedules: list[Any]
    averages: list[Any]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())


class Training:
    """The parts of a run, and the loop body as a user would write it."""

    def __init__(self, spec: Spec, seed: int, *, guarded: bool) -> None:
        seed_all(seed)
        self.spec, self.lbfgs, self.armed, self.guarded = spec, spec.optimizer == "lbfgs", False, guarded
        self.models = tables.MODELS[spec.model]()
        if spec.model == "gan":
            g, c = self.models
            weigh = Criterion()
            self.turns = [
                self._turn(c, lambda x, w: weigh(c(x) - c(g(x).detach()) - 1, w)),
                self._turn(g, lambda x, w: weigh(c(g(x)), w)),
            ]
        else:
            net = self.models[0]
            weigh = self.models[1] if len(self.models) > 1 else Criterion()
            self.turns = [self._turn(net, lambda x, w: weigh(net(x), w))]
        scaled = spec.scaler == "float16"
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3) if scaled else None
        self._good_rate: float | None = None
        self._poisoned = False
        self.target = self.turns[spec.turn if spec.model == "gan" else 0]
        self.culprit = self.target.optimizers[spec.turn if spec.split else 0]
        self.culprit.param_groups[0]["params"][-1].register_hook(self._spoil_gradient)
        if spec.place.startswith("step"):  # an optimizer with hooks is stepped with a copy at hand
            self.culprit.register_step_pre_hook(lambda *_: self.at("step begins"))
            self.culprit.register_step_post_hook(lambda *_: self.at("step ends"))

    def _turn(self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Turn:
        spec, parameters = self.spec, list(model.parameters())
        half = len(parameters) // 2
        groups = [parameters[:half], parameters[half:]] if spec.split else [parameters]
        optimizers = [tables.OPTIMIZERS[spec.optimizer](group) for group in groups]
        schedules = [s for optimizer in optimizers for s in tables.SCHEDULES[spec.schedule](optimizer)]
        return Turn(model, loss, optimizers, schedules, tables.AVERAGES[spec.average](model))

    def all(self, name: str) -> list[Any]:
        return list(chain.from_iterable(getattr(turn, name) for turn in self.turns))

    def guard(self, folder: Path) -> Guard:
        spec = self.spec
        clips = spec.clip and spec.way == "step"
        return Guard(
            self.models if len(self.models) > 1 else self.models[0],
            self.all("optimizers"), self.all("schedules"), self.scaler, self.all("averages"),
            clip_norm=0.5 if clips else None, run_dir=folder, policy=POLICY, sync=spec.sync, locate=spec.locate,
            accumulate=spec.accumulate if spec.way == "step" else 1, quiet=True,
            scheduler_interval="epoch" if spec.schedule == "plateau" else "step",
        )  # fmt: skip

    def bits(self) -> dict[str, Any]:
        parts = {name: self.all(name) for name in ("optimizers", "schedules", "averages")}
        return bits(models=self.models, **parts, scaler=self.scaler or {})

    # -- the fault

    def hit(self, update: int, turn: Turn) -> bool:
        return self.spec.fault != "none" and update == self.spec.at and turn is self.target

    def at(self, place: str) -> None:
        """The body is here: is this where it is left?"""
        if self.armed and place == self.spec.place and self.spec.fault in (*LEFT, *CONTINUE):
            self.armed = False
            errors = {"KeyError": KeyError, "KeyboardInterrupt": KeyboardInterrupt}
            raise errors.get(self.spec.fault, Break)(place)

    def _spoil_gradient(self, gradient: Tensor) -> Tensor | None:
        bad = math.nan if self.spec.fault == "nan gradient" else math.inf
        return gradient * bad if self.armed and self.spec.fault in GRADIENT_FAULTS else None

    def begin(self, update: int, micro: int, turn: Turn) -> None:
        """Prepare what is going to be wrong with this micro-batch."""
        hit = self.hit(update, turn)
        self.armed = hit and micro == self.spec.micro
        group = self.culprit.param_groups[0]
        if self.spec.fault == "nan rate":
            if hit and self._good_rate is None:
                self._good_rate, group["lr"] = group["lr"], math.nan
            elif update != self.spec.at:
                self.end_fault()
        if self.spec.fault == "bad moment" and hit and not self._poisoned:
            self._poisoned = True
            kept = [value for entry in self.culprit.state.values() for value in entry.values()]
            moments = [v for v in kept if isinstance(v, Tensor) and v.is_floating_point() and v.dim() > 0]
            for moment in [v for v in moments if v.layout is torch.strided][:1]:
                moment.view(-1)[0] = math.nan

    def end_fault(self) -> None:
        if self._good_rate is not None:
            self.culprit.param_groups[0]["lr"], self._good_rate = self._good_rate, None

    def batch(self, update: int, micro: int, turn: Turn) -> tuple[Tensor, Tensor]:
        hit = self.hit(update, turn) and micro == self.spec.micro
        bad = hit and self.spec.fault in (*DATA_FAULTS, CONTINUE[1])
        x, w = tables.batch(self.spec, update, micro)
        return tables.spoil(self.spec, x, w) if bad else (x, w)

    # -- the body

    def loss(self, turn: Turn, x: Tensor, w: Tensor) -> Tensor:
        self.at("before")
        kind = torch.float16 if self.spec.scaler == "float16" else torch.bfloat16
        with torch.autocast("cpu", dtype=kind, enabled=self.spec.scaler != "none"):
            loss = turn.loss(x, w)
        self.at("forward")
        return loss

    def micro_batch(self, turn: Turn, micro: int, x: Tensor, w: Tensor) -> None:
        """Forward, backward, and with the last micro-batch of an update all that follows."""
        if self.lbfgs:
            turn.optimizers[0].step(lambda: self._evaluate(turn, x, w))
            return self.advance(turn)
        if micro == 0:
            for optimizer in turn.optimizers:
                optimizer.zero_grad()
        loss = self.loss(turn, x, w)
        loss = loss / self.spec.accumulate if self.spec.accumulate > 1 else loss
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        self.at("backward")
        if micro == self.spec.accumulate - 1:
            self._update(turn)
            self.advance(turn)
        return None

    def _evaluate(self, turn: Turn, x: Tensor, w: Tensor) -> Tensor:
        turn.optimizers[0].zero_grad()
        loss = self.loss(turn, x, w)
        loss.backward()
        self.at("backward")
        if self.spec.clip:
            nn.utils.clip_grad_norm_(turn.parameters, 0.5)
        return loss

    def _update(self, turn: Turn) -> None:
        if self.scaler is not None:
            for optimizer in turn.optimizers:
                self.scaler.unscale_(optimizer)
        if self.spec.clip:
            nn.utils.clip_grad_norm_(turn.parameters, 0.5)
        for optimizer in turn.optimizers:
            optimizer.step() if self.scaler is None else self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()

    def advance(self, turn: Turn) -> None:
        if self.spec.schedule != "plateau":
            for schedule in turn.schedules:
                schedule.step()
        for average in turn.averages:
            update = getattr(average, "update_parameters", None) or average.update
            update(turn.model)

    def end_epoch(self) -> None:
        if self.spec.schedule == "plateau":
            for schedule in self.all("schedules"):
                schedule.step(1.0)
