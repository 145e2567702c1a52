"""The batteries: one file each, found by walking this package, run in the order of their numbers."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from typing import ClassVar

from stayfinite.probe.lab import Lab
from stayfinite.probe.record import Record


class Battery(ABC):
    """One kind of examination. It measures and writes down; the rules judge."""

    order: ClassVar[int]
    name: ClassVar[str]
    title: ClassVar[str]
    needs_finite_step: ClassVar[bool] = True  # makes sense only where an ordinary step is finite

    @abstractmethod
    def run(self, lab: Lab, record: Record) -> None: ...


def all_batteries() -> list[Battery]:
    """Every battery of the package, in order."""
    found: list[Battery] = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found += [
            member()
            for member in vars(module).values()
            if inspect.isclass(member)
            and issubclass(member, Battery)
            and member.__module__ == module.__name__
            and not inspect.isabstract(member)
        ]
    return sorted(found, key=lambda battery: battery.order)
