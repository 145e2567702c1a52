"""One trial: the same small training, unguarded without the bad batch and guarded with it; what differs at the end."""

from __future__ import annotations

import contextlib
import json
import math
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from trials.bits import bits, differing, finite
from trials.tables import (
    AVERAGES,
    CONTINUE,
    DATA_FAULTS,
    GRADIENT_FAULTS,
    LEFT,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    Criterion,
    Spec,
    batch,
    spoil,
)

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
        self.models = MODELS[spec.model]()
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
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
            if spec.scaler == "float16"
            else None
        )
        self._good_rate: float | None = None
        self.target = self.turns[spec.turn if spec.model == "gan" else 0]
        self.culprit = self.target.optimizers[spec.turn if spec.split else 0]
        self.culprit.param_groups[0]["params"][-1].register_hook(self._spoil_gradient)
        self.culprit.register_step_pre_hook(lambda *_: self.at("step begins"))
        self.culprit.register_step_post_hook(lambda *_: self.at("step ends"))

    def _turn(self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Turn:
        spec, parameters = self.spec, list(model.parameters())
        half = len(parameters) // 2
        groups = [parameters[:half], parameters[half:]] if spec.split else [parameters]
        optimizers = [OPTIMIZERS[spec.optimizer](group) for group in groups]
        schedules = [s for optimizer in optimizers for s in SCHEDULES[spec.schedule](optimizer)]
        return Turn(model, loss, optimizers, schedules, AVERAGES[spec.average](model))

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
        scaler = {} if self.scaler is None else {"scaler": self.scaler}
        found = bits(
            models=nn.ModuleList(self.models), averages=nn.ModuleList(self.all("averages")), **scaler
        )
        return found | bits(
            optimizers=self.all("optimizers"), schedules=self.all("schedules"), generators=False
        )

    # -- the fault

    def hit(self, update: int, turn: Turn) -> bool:
        return self.spec.fault != "none" and update == self.spec.at and turn is self.target

    def at(self, place: str) -> None:
        """The body is here: is this where it is left?"""
        if self.armed and place == self.spec.place and self.spec.fault in (*LEFT, *CONTINUE):
            self.armed = False
            raise {"KeyError": KeyError, "KeyboardInterrupt": KeyboardInterrupt}.get(self.spec.fault, Break)(
                place
            )

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
        if self.spec.fault == "bad moment" and hit and micro == 0:
            floats = (
                v for entry in self.culprit.state.values() for v in entry.values() if isinstance(v, Tensor)
            )
            moment = next((v for v in floats if v.is_floating_point() and v.dim() > 0), None)
            if moment is not None and finite({"moment": moment}):
                moment.view(-1)[0] = math.nan

    def end_fault(self) -> None:
        if self._good_rate is not None:
            self.culprit.param_groups[0]["lr"], self._good_rate = self._good_rate, None

    def batch(self, update: int, micro: int, turn: Turn) -> tuple[Tensor, Tensor]:
        x, w = batch(self.spec, update, micro)
        bad = (
            self.hit(update, turn)
            and micro == self.spec.micro
            and self.spec.fault in (*DATA_FAULTS, CONTINUE[1])
        )
        return spoil(self.spec, x, w) if bad else (x, w)

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
        if not self.guarded and self.armed and self.spec.fault == CONTINUE[1]:
            raise Break  # the plain run never sees the bad batch
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


# -- without a guard, and without what a guard refuses


def plain(spec: Spec) -> tuple[dict[str, Any], list[str]]:
    """The bits at the end, and what became of each update that was decided on."""
    training, actions = Training(spec, 0, guarded=False), []
    for update in range(spec.updates):
        for turn in training.turns:
            fate = _fate(spec, training.hit(update, turn))
            if fate == "left":
                seed_all(7)
                break
            if fate == "back-off":
                _back_off(training, turn, update)
            for micro in range(spec.accumulate if fate in ("none", "continue") else 0):
                training.armed = fate == "continue" and micro == spec.micro
                with contextlib.suppress(Break):
                    training.micro_batch(turn, micro, *training.batch(update, micro, turn))
            if fate == "continue":
                actions += ["none"] if spec.micro < spec.accumulate - 1 else []
                break
            actions.append({"back-off": "backoff"}.get(fate, fate))
        if (update + 1) % EPOCH == 0:
            training.end_epoch()
    return training.bits(), actions


def _fate(spec: Spec, hit: bool) -> str:
    if not hit:
        return "none"
    if spec.fault in LEFT:
        return "left"
    if spec.fault in CONTINUE:
        return "continue"
    return "back-off" if spec.fault in GRADIENT_FAULTS and spec.scaler == "float16" else "skip"


def _back_off(training: Training, turn: Turn, update: int) -> None:
    """An overflow is the scaler's own business: it has seen the batch, halves its scale, and nobody steps."""
    scaler = training.scaler
    assert scaler is not None
    for optimizer in turn.optimizers:
        optimizer.zero_grad()
    for micro in range(training.spec.accumulate):
        training.armed = micro == training.spec.micro
        loss = training.loss(turn, *training.batch(update, micro, turn))
        scaler.scale(loss / training.spec.accumulate if training.spec.accumulate > 1 else loss).backward()
    training.armed = False
    for optimizer in turn.optimizers:
        scaler.unscale_(optimizer)
        optimizer.zero_grad()
    scaler.update()


# -- with a guard


class Guarded:
    """The guarded run. `problems` are broken promises that the bits at the end would not show."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec, self.folder, self.problems = spec, folder, []
        self.folders: list[Path] = []
        self._bad_in_a_row = 0
        self._start(0)

    def _start(self, seed: int) -> None:
        self.training = Training(self.spec, seed, guarded=True)
        self.folders.append(self.folder / str(seed))
        self.guard = self.training.guard(self.folders[-1])

    def go(self) -> tuple[dict[str, Any], list[str]]:
        (self._steps if self.spec.way == "step" else self._watch)()
        self.training.end_fault()
        self.guard.settle()
        found = self.training.bits()
        self.guard.close()
        if self.spec.fault == "bad moment" and not finite(self.training.bits()):
            self.problems.append("not finite at the end")
        return found, [line["action"] for line in self._lines()]

    def _lines(self) -> Iterator[dict[str, Any]]:
        for folder in self.folders:
            for line in (folder / "run.jsonl").read_text().splitlines():
                if "event" not in (record := json.loads(line)):
                    yield record

    def _save(self) -> None:
        path = self.folder / "saved.pt"
        if not path.exists():
            self.guard.save(path)

    def _resume(self) -> None:
        self.guard.close()
        self._start(99)
        self.guard.restore(self.folder / "saved.pt")

    def _was_left(self) -> None:
        self.training.armed = False
        if any(p.grad is not None and bool(p.grad.any()) for p in self.training.target.parameters):
            self.problems.append("gradients are left")
        seed_all(7)

    def _look(self) -> None:
        """After an update: state may be bad once, if nobody could see it before; not twice."""
        if self.spec.fault == "bad moment":
            self._bad_in_a_row = 0 if finite(self.training.bits()) else self._bad_in_a_row + 1
            if self._bad_in_a_row == len(self.training.turns) + 1:
                self.problems.append("not finite after the next step")

    # -- by guard.step

    def _steps(self) -> None:
        spec = self.spec
        for update in range(spec.updates):
            if update == spec.resume:
                self._save()
                self._resume()
            for turn in self.training.turns:
                try:
                    for micro in range(spec.accumulate):
                        self._step(turn, update, micro)
                except (KeyError, KeyboardInterrupt):
                    self._was_left()
                    break
                self.training.end_fault()
                self._look()
            if (update + 1) % EPOCH == 0:
                self.guard.settle()
                self.training.end_epoch()

    def _step(self, turn: Turn, update: int, micro: int) -> None:
        training = self.training
        x, w = training.batch(update, micro, turn)

        def loss() -> Tensor:
            training.begin(update, micro, turn)
            found = training.loss(turn, x, w)
            if training.armed and self.spec.place == "backward":
                found.register_hook(lambda _: training.at("backward"))
            return found

        if self.spec.fault in ("nan rate", "bad moment"):
            training.begin(update, micro, turn)
        self.guard.step(loss, batch=(x, w), optimizer=turn.optimizers)

    # -- by guard.watch

    def _watch(self) -> None:
        spec = self.spec
        keys = [(update, micro) for update in range(spec.updates) for micro in range(spec.accumulate)]
        epochs = [keys[i : i + EPOCH * spec.accumulate] for i in range(0, len(keys), EPOCH * spec.accumulate)]
        full = [len(epoch) == EPOCH * spec.accumulate for epoch in epochs]
        number = 0
        while number < len(epochs):
            epoch = epochs[number]
            if epoch[:1] == [(spec.resume, 0)] and spec.resume_at == "between" and len(self.folders) == 1:
                self._save()
                self._resume()
            try:
                outcome = self._epoch(epoch)
            except (KeyError, KeyboardInterrupt):
                outcome = "left"
            if outcome == "saved":
                self._resume()
            elif outcome == "left":
                self._was_left()
                epochs[number] = [key for key in epoch if key[0] > spec.at]
            else:
                if full[number]:
                    self.training.end_epoch()
                number += 1

    def _epoch(self, epoch: list[tuple[int, int]]) -> str:
        loop = iter(self.guard.watch(epoch))
        for update, micro in loop:
            if self._saves_here(update, micro, "start"):
                return "saved"
            try:
                for turn in self.training.turns:
                    self.training.begin(update, micro, turn)
                    self.training.micro_batch(turn, micro, *self.training.batch(update, micro, turn))
                    self._look()
            except Break:
                if self.spec.fault in CONTINUE:
                    continue
                if self.spec.fault == "close":
                    loop.close()  # type: ignore[attr-defined]
                return "left"
            if self._saves_here(update, micro, "end"):
                return "saved"
        return "ended"

    def _saves_here(self, update: int, micro: int, where: str) -> bool:
        spec = self.spec
        if spec.resume is None or len(self.folders) > 1:
            return False
        if spec.resume_at == "start":
            here = where == "start" and (update, micro) == (spec.resume, 0)
        else:
            between = spec.resume_at == "between" and spec.resume % EPOCH == 0
            last = (spec.resume - 1, spec.accumulate - 1)
            here = where == "end" and (update, micro) == last and not between
        if here:
            self._save()
        return here


def differences(spec: Spec) -> list[str]:
    """What the guarded run has otherwise than the one that never saw the bad batch; nothing, if all is well."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, fates = plain(spec) if spec.fault != "bad moment" else ({}, [])
        try:
            run = Guarded(spec, Path(folder))
            found, actions = run.go()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it raises is the finding
            return [f"raised {type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"]
        if spec.fault == "bad moment":
            return run.problems
        counts = run.guard.counters
        counted = (counts.applied, counts.skipped, counts.backoffs, counts.steps)
        wanted = (*(fates.count(kind) for kind in ("none", "skip", "backoff")), len(fates))
        return (
            run.problems
            + ([f"counted {counted} instead of {wanted}"] if counted != wanted else [])
            + ([f"recorded {actions} instead of {fates}"] if actions != fates and counted == wanted else [])
            + differing(found, expected)
        )
