"""Vitals: one sampled step, from its first forward pass to numbers that ride with its verdict. No bit is changed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.findings.subjects.outlook import VitalSample
from stayfinite.watch.host import Parcel
from stayfinite.watch.vitals.group_vitals import GroupVitals
from stayfinite.watch.vitals.logits import Logits
from stayfinite.watch.vitals.module_vitals import ModuleVitals


class Vitals:
    """`begin`, the user's forward and backward passes, `gathered`, `sample`; `drop` at any time."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._modules, self._groups, self._logits = ModuleVitals(models), GroupVitals(), Logits()
        self._parts = (self._modules, self._groups, self._logits)
        self._parcel: Parcel | None = None
        self.seconds = 0.0  # what the last sample cost the host

    @property
    def attached(self) -> bool:
        return self._modules.attached

    @property
    def trouble(self) -> str | None:
        """What went wrong while measuring; nothing is measured from then on."""
        return self._modules.trouble

    @property
    def unseen(self) -> list[str]:
        """Sentences on what cannot be looked into."""
        said = []
        if self._modules.compiled:
            names = ", ".join(self._modules.compiled[:3])
            said.append(f"the inside of compiled modules is not measured ({names})")
        if not Logits.can_be_heard():
            said.append("softmax and exp are not measured in a process that compiles")
        if self._modules.left_out:
            said.append(f"{self._modules.left_out} modules beyond the first ones are not measured")
        return said

    def begin(self) -> None:
        began = time.perf_counter()
        self._parcel = None
        self._modules.attach()
        self._logits.attach()
        self.seconds = time.perf_counter() - began - self._modules.seconds

    def rest(self) -> None:
        """No forward pass of this step is left."""
        self._modules.detach()
        self._logits.detach()

    def gathered(self, optimizers: Sequence[Optimizer]) -> Tensor | None:
        """All gradients are there, raw, and no weight has moved yet: what was measured, as one vector on the device."""
        began = time.perf_counter()
        self.rest()
        with self._own_failures():
            self._groups.gathered(optimizers)
            self._parcel = Parcel([value for part in self._parts for value in part.scalars()])
        self.seconds += time.perf_counter() - began
        return self._parcel.vector if self._parcel is not None and self.trouble is None else None

    @contextmanager
    def _own_failures(self) -> Iterator[None]:
        """Whatever goes wrong in measuring is ours, and must not become the script's failure."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - said once, and the run goes on without vitals
            self._modules.trouble = f"{type(error).__name__}: {error}"

    def drop(self) -> None:
        """The step was no good sample."""
        self.rest()
        self._parcel = None

    @property
    def is_ready(self) -> bool:
        return self._parcel is not None and self.trouble is None

    def update_begins(self, optimizers: Sequence[Optimizer]) -> None:
        """An update that the next sample is to tell of."""
        with self._own_failures():
            self._groups.update_begins(optimizers)

    def update_ended(self, *, made: bool) -> None:
        with self._own_failures():
            if made:
                self._groups.update_made()
            else:
                self._groups.update_dropped()

    def forget_updates(self, optimizers: Sequence[Optimizer]) -> None:
        self._groups.forget_updates(optimizers)

    def sample(self, step: int, numbers: Sequence[float]) -> VitalSample:
        """What `gathered` gave has come to the host."""
        began = time.perf_counter()
        assert self._parcel is not None
        found, at = self._parcel.unpacked(numbers), 0
        self._parcel = None
        parts: list[list[float]] = []
        for part in self._parts:
            count = len(part.scalars())
            parts.append(found[at : at + count])
            at += count
        modules, zeros = self._modules.told(parts[0])
        groups, shares = self._groups.told(parts[1])
        logits, scores, exponents = self._logits.told(iter(parts[2]))
        self.seconds += time.perf_counter() - began + self._modules.seconds
        return VitalSample(
            step,
            modules,
            groups=groups,
            zeros={**zeros, **shares},
            logits=logits,
            exponents=exponents,
            scores=scores,
        )
