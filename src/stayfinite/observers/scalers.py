"""Observes GradScaler: scale, skipped steps, whether its state was loaded, whether gradients are still scaled."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import Place, ScalerFacts, StepRecord
from stayfinite.observers.history import RunHistory, here
from stayfinite.observers.optimizers import OptimizerObserver
from stayfinite.observers.ownership import Hear
from stayfinite.observers.unscaled_losses import UnscaledLosses
from stayfinite.replay.measure import is_bad
from stayfinite.replay.sites import called_by_us
from stayfinite.replay.tracer import unfollowed
from stayfinite.watch.optimizer_facts import rate_of

_FIRST = 10
_NOWHERE = Place()


@dataclass(slots=True)
class ObservedScaler:
    """One scaler over its life."""

    scaler: weakref.ref[Any]
    created: Place
    init_scale: float
    earlier_scale: float | None
    scale: float
    loaded: bool = False
    steps: int = 0
    skipped: int = 0
    skipped_first: int = 0
    streak: int = 0
    forward_bad: int = 0
    scheduler_stepped_on_skip: int = 0
    bypassed: int = 0
    stepped: set[int] = field(default_factory=set)  # optimizers that it has stepped since the last loss
    stepped_again: int = 0  # steps that the script made by itself right after those
    penalties: int = 0  # gradients of a scaled loss that were made part of another loss
    penalty: Place = _NOWHERE
    unscaled_losses: int = 0  # updates of a loss that was not scaled
    unscaled_loss: Place = _NOWHERE
    scale_read: int = 0  # how often the script asked for the scale
    scaled: bool = False  # a loss was scaled and the gradients are not unscaled yet
    unscaled: set[int] = field(default_factory=set)
    unscaled_by_script: set[int] = field(default_factory=set)  # not by a guard
    unchecked: int = 0  # steps of an optimizer itself after those
    skipped_now: bool = False
    losses: list[torch.Tensor] = field(default_factory=list)  # before scaling, since the last update


class ScalerObserver:
    """All scalers of a run."""

    def __init__(self, history: RunHistory, optimizers: OptimizerObserver) -> None:
        self._history, self._optimizers = history, optimizers
        self.known: list[ObservedScaler] = []
        self._stepping_now = False
        self._last_found: tuple[torch.Tensor | None, bool] = None, False
        # what was made of a loss by scaling, and the loss itself
        self._scaled_losses: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []
        self._looking = False
        self._unscaled_losses = UnscaledLosses()
        self.on_created: Callable[[], None] | None = None
        self.on_skip: Callable[[torch.optim.Optimizer, bool], None] | None = None
        """A scaler has skipped an update; was the loss itself bad, whatever the scale?"""

    def install(self, hear: Hear) -> None:
        for event, around in (
            ("scaler_made", self._created),
            ("scale", self._scaling),
            ("unscale", self._unscaling),
            ("scaler_step", self._stepping),
            ("scaler_update", self._updating),
            ("scaler_load", self._loading),
            ("scale_read", self._reading),
            ("grad", self._gradient_of_scaled),
        ):
            hear(event, around)

    def find(self, scaler: Any) -> ObservedScaler | None:
        return next((seen for seen in self.known if seen.scaler() is scaler), None)

    def _created(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        self.adopt(scaler, here())

    def adopt(self, scaler: Any, made: Place = _NOWHERE) -> None:
        """A scaler was made, or somebody brought one that had been."""
        if not getattr(scaler, "_enabled", False):
            return
        used = [seen for seen in self.known if seen.steps]
        earlier = self._scale_now(used[-1]) if used else None
        start = float(getattr(scaler, "_init_scale", 0.0))
        self.known.append(ObservedScaler(weakref.ref(scaler), made, start, earlier, start))

    def _loading(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        seen = self.find(scaler)
        if seen is not None and not called_by_us():
            seen.loaded = True
        return original(scaler, *args, **kwargs)

    def _scaling(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        seen = self.find(scaler)
        result = original(scaler, *args, **kwargs)
        if seen is None:
            return result
        seen.scaled, seen.unscaled, seen.unscaled_by_script, seen.stepped = True, set(), set(), set()
        given = args[0] if args else kwargs.get("outputs")
        self._unscaled_losses.scaled(
            1 if isinstance(given, torch.Tensor) else 2
        )  # of several none is known below
        if isinstance(result, torch.Tensor) and isinstance(given, torch.Tensor) and result.numel() == 1:
            before = given.detach()
            self._scaled_losses = [*self._scaled_losses[-7:], (weakref.ref(result), before)]
            seen.losses.append(before)
            del seen.losses[:-64]
        return result

    def before_scaling(self, loss: torch.Tensor) -> torch.Tensor | None:
        """The loss that this one is a multiple of; None where no scaler made it."""
        return next((given for known, given in self._scaled_losses if known() is loss), None)

    def unscaled_backward(self, roots: Sequence[torch.Tensor]) -> Place | None:
        """A backward pass is over: its line, if it began at a loss that no scaler has scaled."""
        known = [self.before_scaling(root) is not None for root in roots]
        unscaled = self._unscaled_losses.is_unscaled(known, all(root.numel() == 1 for root in roots))
        return here() if unscaled and self.known else None

    def answers(self, optimizer: torch.optim.Optimizer, unscaled: Sequence[Place | None]) -> None:
        """An optimizer is about to make its update of losses: the lines of those that were not scaled."""
        self._unscaled_losses.answered(id(optimizer), unscaled)

    def scale(self) -> torch.Tensor | None:
        """The scale that is in the losses now, as it lies on the device."""
        for seen in self.known:
            scaler = seen.scaler() if seen.scaled else None
            if scaler is not None:
                scale = getattr(scaler, "_scale", None)
                return scale.detach() if isinstance(scale, torch.Tensor) else None
        return None

    def _scale_now(self, seen: ObservedScaler) -> float:
        """Asks the device: for a report, not for a step."""
        scaler = seen.scaler()
        if scaler is not None:
            self._looking = True
            try:
                with unfollowed():
                    seen.scale = float(scaler.get_scale())
            finally:
                self._looking = False
        return seen.scale

    def _reading(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        seen = self.find(scaler)
        if seen is not None and not self._looking:
            seen.scale_read += 1
        return original(scaler, *args, **kwargs)

    def _gradient_of_scaled(self, original: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """With create_graph, a gradient goes into another loss; this one still holds the scale."""
        if kwargs.get("create_graph"):
            given = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            scaled = [loss for known, _ in self._scaled_losses if (loss := known()) is not None]
            if any(tensor is loss for tensor in given for loss in scaled):
                for seen in self.known:
                    if seen.scaled and seen.scaler() is not None:
                        seen.penalties, seen.penalty = seen.penalties + 1, here()
        return original(outputs, *args, **kwargs)

    def _unscaling(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        seen = self.find(scaler)
        if seen is not None:
            seen.unscaled.add(id(optimizer))
            if not called_by_us():
                seen.unscaled_by_script.add(id(optimizer))
        return original(scaler, optimizer, *args, **kwargs)

    def _stepping(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        seen, known = self.find(scaler), self._optimizers.find(optimizer)
        before = known.steps
        self._stepping_now = True
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._stepping_now, self._last_found = False, (None, False)
        if seen is None:
            return result
        seen.stepped.add(id(optimizer))
        place = self._unscaled_losses.stepped(id(optimizer))
        if place is not None:
            seen.unscaled_losses, seen.unscaled_loss = seen.unscaled_losses + 1, place
        if known.steps > before:
            self._has_stepped(seen)
        else:
            known.stepped = here()
            self._has_skipped(seen, optimizer)
        return result

    def skips(self, optimizer: torch.optim.Optimizer) -> bool:
        """A scaler calls the step of a fused optimizer in any case, which then changes nothing if gradients are not
        finite. Asks the device once a step."""
        found = getattr(optimizer, "found_inf", None) if self._stepping_now else None
        if not isinstance(found, torch.Tensor):
            return False
        if found is not self._last_found[0]:
            with unfollowed():
                self._last_found = found, bool(found.detach().sum() != 0)
        return self._last_found[1]

    def _has_stepped(self, seen: ObservedScaler) -> None:
        seen.steps += 1
        seen.streak, seen.skipped_now, seen.losses = 0, False, []

    def _has_skipped(self, seen: ObservedScaler, optimizer: torch.optim.Optimizer) -> None:
        with unfollowed():
            bad = any(is_bad(loss) for loss in seen.losses)
            loss = float(seen.losses[-1]) if seen.losses else None
        seen.forward_bad += int(bad)
        self.skipped(seen)
        if not self._history.guarded:
            rate = rate_of(optimizer)
            self._history.add(StepRecord(self._history.step, loss, lr=rate, scale=seen.scale, applied=False))
        if self.on_skip is not None:
            self.on_skip(optimizer, bad)

    def skipped(self, seen: ObservedScaler | None = None) -> None:
        """An update was left out because of the scale: by the scaler, or by a guard that saw it first."""
        seen = seen or next((known for known in self.known if known.scaler() is not None), None)
        if seen is not None:
            seen.steps += 1
            seen.skipped += 1
            seen.streak += 1
            seen.skipped_first += int(seen.steps <= _FIRST)
            seen.skipped_now, seen.losses = True, []

    def _updating(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scaler, *args, **kwargs)
        seen = self.find(scaler)
        if seen is not None:
            seen.scaled, seen.stepped = False, set()
            self._unscaled_losses.updated()
        return result

    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer steps now; by itself, while its gradients are still scaled, it steps too far."""
        if self._stepping_now or not any(seen.scaled for seen in self.known):
            return
        for seen in self.known:
            if id(optimizer) in seen.stepped:
                seen.stepped_again += 1
            elif id(optimizer) in seen.unscaled:  # a guard steps it, after a look of its own
                self._has_stepped(seen)
                seen.unchecked += int(id(optimizer) in seen.unscaled_by_script)
        if self._unscaled_losses.is_untouched(id(optimizer)):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self.scale_in(parameters) is not None:
            seen = next(w for w in self.known if w.scaled and w.scaler() is not None)
            seen.bypassed += 1

    def scheduler_stepped(self) -> None:
        """A scheduler steps now; after a refused step it runs ahead."""
        for seen in self.known:
            if seen.skipped_now:
                seen.scheduler_stepped_on_skip += 1
                seen.skipped_now = False

    def scale_in(self, parameters: list[torch.Tensor]) -> float | None:
        """The loss scale that is still inside the gradients of these parameters."""
        wanted = {id(parameter) for parameter in parameters}
        for seen in self.known:
            if not seen.scaled or seen.scaler() is None:
                continue
            for number, other in self._optimizers.known.items():
                optimizer = other.optimizer()
                if optimizer is None or number in seen.unscaled:
                    continue
                if any(id(p) in wanted for group in optimizer.param_groups for p in group["params"]):
                    return self._scale_now(seen)
        return None

    def facts(self) -> tuple[ScalerFacts, ...]:
        return tuple(
            ScalerFacts(
                init_scale=w.init_scale,
                scale=self._scale_now(w),
                loaded=w.loaded,
                steps=w.steps,
                skipped=w.skipped,
                skipped_first=w.skipped_first,
                streak=w.streak,
                forward_bad=w.forward_bad,
                scheduler_stepped_on_skip=w.scheduler_stepped_on_skip,
                created=w.created,
                earlier_scale=w.earlier_scale,
                bypassed=w.bypassed,
                stepped_again=w.stepped_again,
                unchecked=w.unchecked,
                penalties=0 if w.scale_read else w.penalties,
                penalty=w.penalty,
                unscaled_losses=0 if w.scale_read else w.unscaled_losses,
                unscaled_loss=w.unscaled_loss,
            )
            for w in self.known
        )
