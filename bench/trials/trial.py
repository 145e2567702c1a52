"""One trial: unguarded without the bad batch, guarded with it; what differs at the end."""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from trials.bits import differing, finite
from trials.tables import CONTINUE, GRADIENT_FAULTS, LEFT, Spec
from trials.training import EPOCH, Break, Training, Turn, seed_all

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
                spoils = training.armed and spec.fault == "nan, continue"
                with (
                    contextlib.suppress(Break),
                    _buffers_kept(training) if spoils else contextlib.nullcontext(),
                ):
                    training.micro_batch(turn, micro, *training.batch(update, micro, turn))
            if fate == "continue":
                actions += ["none"] if spec.micro < spec.accumulate - 1 else []
                break
            actions.append({"back-off": "backoff"}.get(fate, fate))
        if (update + 1) % EPOCH == 0:
            training.end_epoch()
    return training.bits(), actions


@contextlib.contextmanager
def _buffers_kept(training: Training) -> Iterator[None]:
    """A body that sees NaN and goes on draws its random numbers, but leaves no NaN in running statistics."""
    owners = [module for model in training.models for module in model.modules()]
    before = [
        {key: None if b is None else b.clone() for key, b in owner._buffers.items()} for owner in owners
    ]
    try:
        yield
    finally:
        for owner, buffers in zip(owners, before, strict=True):
            owner._buffers.clear()
            owner._buffers.update(buffers)


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
        texts = [(folder / "run.jsonl").read_text().splitlines() for folder in self.folders]
        records = [json.loads(line) for text in texts for line in text]
        return found, [record["action"] for record in records if "event" not in record]

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
        """Between two updates: state may be bad once, if nobody could see it before; not after the next step."""
        if self.spec.fault == "bad moment":
            self.guard.settle()
            self._bad_in_a_row = 0 if finite(self.training.bits()) else self._bad_in_a_row + 1
            if self._bad_in_a_row == (len(self.training.turns) + 1 if self.spec.way == "step" else 2):
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

        # LBFGS begins its step before it asks for a loss.
        if self.spec.fault in ("nan rate", "bad moment") or training.lbfgs:
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
        loop, before = iter(self.guard.watch(epoch)), None
        for update, micro in loop:
            if micro == 0 and update != before:  # a body may be handed out again, to be followed
                self._look()
            before = update
            if self._saves_here(update, micro, "start"):
                return "saved"
            try:
                for turn in self.training.turns:
                    self.training.begin(update, micro, turn)
                    self.training.micro_batch(turn, micro, *self.training.batch(update, micro, turn))
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
        body = (spec.resume, 0) if where == "start" else ((spec.resume or 0) - 1, spec.accumulate - 1)
        here = spec.resume_at == where and (update, micro) == body and len(self.folders) == 1
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
