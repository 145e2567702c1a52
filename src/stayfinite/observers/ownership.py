"""Ownership: whose an event is. A guard hears only what concerns its own parameters; `run` hears the whole script."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from stayfinite.hooks import Around
from stayfinite.recover.wrapped import optimizer_of, unwrapped

Hear = Callable[[str, Around], None]
"""Have every event of this kind that is one's own brought to a function."""


class TrainingParts(Protocol):
    """What a guard was given."""

    optimizers: list[Optimizer]
    models: dict[str, Module]
    scaler: Any
    parameter_names: dict[Tensor, str]


class Ownership:
    """Everything in the process."""

    step_in: int | None = None  # the thread in which a step is open

    def of_optimizer(self, optimizer: Any) -> bool:
        return True

    def of_parameters(self, parameters: Sequence[Any]) -> bool:
        return True

    def of_event(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return True


class OwnParts(Ownership):
    """The parts of one guarded run, for as long as they live; nothing is kept alive by listening to it."""

    def __init__(self, parts: TrainingParts) -> None:
        self._parts = weakref.ref(parts)
        self._made_in = threading.get_ident()

    def of_optimizer(self, optimizer: Any) -> bool:
        parts = self._parts()
        return parts is not None and any(optimizer is own for own in parts.optimizers)

    def of_event(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """`args`: what was called with, the object itself first."""
        if event in ("optimizer_load", "optimizer_read"):
            return self.of_optimizer(args[0])
        if event == "scheduler_made":
            return self.of_optimizer(unwrapped(args[1] if len(args) > 1 else kwargs.get("optimizer")))
        if event in ("schedule", "scheduler_load"):
            return self.of_optimizer(optimizer_of(args[0]))
        if event in ("module_load", "deepcopy"):
            return isinstance(args[0], Module) and self._of_module(args[0])
        if event in ("clip", "warning"):
            return True  # its parameters may be a generator, which can be read only once: see `of_parameters`
        if event in ("binary_target", "grad"):
            return self.step_in == threading.get_ident()
        if event in ("file_load", "file_save"):
            return self._made_in == threading.get_ident()
        parts = self._parts()
        return parts is not None and bool(args) and args[0] is parts.scaler  # events of scalers

    def _of_module(self, module: Module) -> bool:
        parts = self._parts()
        if parts is None:
            return False
        own = parts.parameter_names
        return any(module is model for model in parts.models.values()) or any(
            p in own for p in Module.parameters(module)
        )

    def of_parameters(self, parameters: Sequence[Any]) -> bool:
        parts = self._parts()
        return parts is not None and any(p in parts.parameter_names for p in parameters)
