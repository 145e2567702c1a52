"""Vitals: one sampled step, from its first forward pass to the numbers on the host. One transfer, no bit changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.findings.subjects.outlook import VitalSample
from stayfinite.watch.vitals.group_vitals import GroupVitals
from stayfinite.watch.vitals.logits import Logits
from stayfinite.watch.vitals.module_vitals import ModuleVitals


class Vitals:
    """`begin`, the user's forward and backward passes, `gathered`, the update, `sample`; `drop` at any time."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._modules, self._groups, self._logits = ModuleVitals(models), GroupVitals(), Logits()
        self._gathered = False
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
        self._gathered = False
        self._modules.attach()
        self._logits.attach()
        self.seconds = time.perf_counter() - began - self._modules.seconds

    def rest(self) -> None:
        """No forward pass of this step is left."""
        self._modules.detach()
        self._logits.detach()

    def gathered(self, optimizers: Sequence[Optimizer]) -> None:
        """All gradients are there, raw, and no weight has moved yet."""
        began = time.perf_counter()
        self.rest()
        self._groups.before(optimizers)
        self._gathered = True
        self.seconds += time.perf_counter() - began

    def drop(self) -> None:
        """The step was no good sample."""
        self.rest()
        self._gathered = False

    @property
    def is_ready(self) -> bool:
        return self._gathered and self.trouble is None

    def sample(self, step: int, *, updated: bool) -> VitalSample:
        """The update was made, or refused: everything to the host, in one transfer."""
        began = time.perf_counter()
        self._gathered = False
        if updated:
            self._groups.after()
        parts = (self._modules, self._groups, self._logits)
        numbers = iter(_to_host([value for part in parts for value in part.scalars()]))
        modules, zeros = self._modules.told(numbers)
        groups, shares = self._groups.told(numbers)
        logits, exponents = self._logits.told(numbers)
        self.seconds += time.perf_counter() - began + self._modules.seconds
        return VitalSample(
            step, modules, groups=groups, zeros={**zeros, **shares}, logits=logits, exponents=exponents
        )


@torch.no_grad()
def _to_host(values: Sequence[Tensor]) -> list[float]:
    if not values:
        return []
    device = values[0].device
    wide = torch.float32 if device.type == "mps" else torch.float64
    numbers: list[float] = torch.stack([value.to(device=device, dtype=wide) for value in values]).tolist()
    return numbers
