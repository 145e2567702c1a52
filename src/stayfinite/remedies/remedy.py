"""Remedy: a change that may cure a birth, found by its mechanism. One file in this package is one remedy."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar

import stayfinite.remedies as package
from stayfinite.findings.mechanism.kind import Judged, Kind, Mechanism
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.remedies.source import Edit, SourceSite


@dataclass(frozen=True, slots=True)
class Case:
    """A birth as a remedy sees it: what happened, where, and the source of that place."""

    step: FailedStep
    birth: TracedBirth
    how: Mechanism
    site: SourceSite | None = None  # None: no line of source is known

    @property
    def kind(self) -> Kind:
        return self.how.kind

    @property
    def op(self) -> str:
        """The forward op, also of a birth in the backward pass."""
        return self.birth.forward_name or self.birth.op

    @property
    def call(self) -> str:
        """The function that was called there, without its module: normalize, log, truediv."""
        return self.birth.birth.call.rpartition(".")[2].strip("_")

    @property
    def operand(self) -> Operand | None:
        return self.how.operand

    @property
    def in_half(self) -> bool:
        half = ("float16", "bfloat16")
        return self.birth.is_half or any(o.dtype in half for o in self.birth.operands)

    @property
    def names(self) -> tuple[str, ...]:
        """What the expression of the birth may be called in the source."""
        return tuple(dict.fromkeys((self.call, self.op)))


class Remedy:
    """One remedy. A subclass gives `edits` (of the source at the birth) or `applied` (around the whole run)."""

    name: ClassVar[str]  # "log-space"
    sentence: str  # what to do, to a person
    kinds: ClassVar[frozenset[Kind]]
    popular: ClassVar[bool] = False  # what forums recommend for anything: shown when it fails
    rank: ClassVar[int] = 5  # among proved ones of equal distortion the smaller goes first: exact forms 1
    goes_first: ClassVar[bool] = False  # that it fits is evidence by itself: tried while there is time
    universal: ClassVar[bool] = False  # helps against anything (a batch left out), so it is no control
    leaves_steps_out: ClassVar[bool] = False  # so it has cured nothing unless later steps train
    of_updates: ClassVar[bool] = False  # changes what the optimizer does
    # shows what it is worth over many steps only, not at the one that failed
    over_steps: ClassVar[bool] = False
    rate_factor: ClassVar[float | None] = None  # the learning rate that it ends at, if it changes that: 0.1
    trains_otherwise: ClassVar[bool] = False  # a rate, a clip: healthy steps change by design
    ends_cancelling: ClassVar[bool] = False  # what it replaces is a difference: right only up to rounding
    only_wider: ClassVar[bool] = False  # more room for large numbers: if these grow on, it only postpones
    cuts_off: ClassVar[bool] = False  # what fails there gets no gradient, whatever else may be done about it
    # False: what people try, and leaves the cause as it is; never called proved
    is_cure: ClassVar[bool] = True

    def fits(self, case: Case) -> bool:
        """Whether it may cure this birth, by its mechanism."""
        return case.kind in self.kinds

    def leaves(self, case: Case) -> str | None:
        """Why a birth is not cured by it although everything is finite then; None where it is."""
        return None

    def can_act(self, case: Case) -> bool:
        """Whether it would change anything: a control that is nothing is no control."""
        return True

    def edits(self, case: Case) -> list[Edit]:
        """Edits of the source; none if it is not written in a way that this remedy knows."""
        return []

    def applied(self) -> AbstractContextManager[None] | None:
        """For a remedy that is no edit: in effect while entered."""
        return None

    def ways(self, case: Case) -> Iterator[Prescription]:
        """How it can be applied to this birth, the best first: the next is tried where one raises or does not help."""
        edits = tuple(self.edits(case)) if case.site is not None else ()
        if edits and case.site is not None:
            yield Prescription(self, case.site.file, edits)
        elif self.can_act(case) and self.applied() is not None:
            yield Prescription(self)


@dataclass(frozen=True, slots=True)
class Prescription:
    """A remedy for one birth, ready to be tried."""

    remedy: Remedy
    file: str | None = None
    edits: tuple[Edit, ...] = field(default=())
    otherwise: Prescription | None = None  # another way to apply it


@cache
def all_remedies() -> tuple[Remedy, ...]:
    """Every remedy of this package, by name."""
    found: dict[str, Remedy] = {}
    for module in pkgutil.iter_modules(package.__path__):
        for value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Remedy) and "name" in vars(value):
                found[value.name] = value()
    return tuple(found[name] for name in sorted(found))


def prescriptions(case: Case, *, fitting: bool = True) -> Iterator[Prescription]:
    """The remedies that can be tried on this birth: those that fit its mechanism, or those that do not."""
    for remedy in all_remedies():
        if remedy.fits(case) is not fitting:
            continue
        chain: Prescription | None = None
        for way in reversed(list(remedy.ways(case))):
            chain = replace(way, otherwise=chain)
        if chain is not None:
            yield chain


def case_of(step: FailedStep, judged: Judged, text: str | None) -> Case:
    """The case of one birth; `text` is the source of its file."""
    birth = judged.birth.birth
    site = None
    if text is not None and birth.file is not None and birth.line is not None:
        try:
            site = SourceSite(birth.file, text, birth.line)
        except (SyntaxError, ValueError):
            site = None
    return Case(step, judged.birth, judged.how, site)
