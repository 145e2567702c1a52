"""How far an update moves the weights, measured on a small fixed sample so that it costs next to nothing."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from stayfinite.shards import local
from stayfinite.watch.outside_autocast import outside_autocast

_TENSORS = 4
_ELEMENTS = 4096
# weights that begin at zero are measured by this: their first update is no infinite change
_SMALL_WEIGHT = 0.01


class UpdateSampler:
    """`before` and `after` an optimizer step; `after` gives |change| / |weight| of the sample, on the device."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._given = parameters
        trained = [
            p for p in parameters if p.requires_grad and p.is_floating_point() and local(p).numel() > 0
        ]
        trained = [p for p in trained if p.layout is torch.strided]
        largest = sorted(trained, key=lambda p: p.numel(), reverse=True)[:_TENSORS]
        self._parameters = [p for p in largest if p.device == largest[0].device]
        sampled = sum(min(p.numel(), _ELEMENTS) for p in self._parameters)
        self.least = _SMALL_WEIGHT * sampled**0.5 or 1.0
        # the square of an absurd update is beyond float32, and how absurd it was is what is asked for
        in_float64 = bool(largest) and largest[0].device.type != "mps"
        self._dtype = torch.float64 if in_float64 else torch.float32
        self._views: list[Tensor] = []
        self._before: list[Tensor] = []

    def is_of(self, parameters: Sequence[Tensor]) -> bool:
        """Are these the parameters it was made for?"""
        if parameters is self._given:
            return True
        return len(parameters) == len(self._given) and all(map(operator.is_, parameters, self._given))

    def _sample(self) -> list[Tensor]:
        """Views into the parameters, made once; anew if somebody gave a parameter other memory."""
        if len(self._views) != len(self._parameters) or any(
            view.data_ptr() != local(p).data_ptr()
            for view, p in zip(self._views, self._parameters, strict=True)
        ):
            self._views = [local(p.detach()).reshape(-1)[:_ELEMENTS] for p in self._parameters]
        return self._views

    @torch.no_grad()
    def before(self) -> None:
        sample = self._sample()
        if len(self._before) != len(sample):
            self._before = [torch.empty_like(part) for part in sample]
        if sample:
            torch._foreach_copy_(self._before, sample)

    @torch.no_grad()
    def norms(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Of the change of each sampled tensor, then of each as it was; nothing if `before` was not called."""
        if not self._before:
            return []
        changes = torch._foreach_sub(self._sample(), self._before)
        return list(torch._foreach_norm([*changes, *self._before], dtype=dtype))

    @torch.no_grad()
    @outside_autocast
    def after(self) -> Tensor | None:
        """The ratio as a 0-d tensor; None if there is nothing to sample or `before` was not called."""
        norms = self.norms(self._dtype)
        if not norms:
            return None
        half = len(norms) // 2
        change, weight = torch._foreach_norm([torch.stack(norms[:half]), torch.stack(norms[half:])])
        ratio: Tensor = change / weight.clamp_min(self.least)
        return ratio.float()
