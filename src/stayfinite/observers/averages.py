"""Observes copies of models and of their weights: whether a copy in half precision moves when it is written to."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import AverageFacts, Place
from stayfinite.observers.history import here
from stayfinite.replay import Tracer
from stayfinite.replay.float32 import HALF
from stayfinite.replay.living import living
from stayfinite.replay.measure import is_plain
from stayfinite.replay.sites import place_at
from stayfinite.replay.tracer import unfollowed

_SAMPLED = 64  # values of each parameter that are remembered
_KEPT = 16
_OFTEN = 20
_FAR = 0.5  # of a value: 64 steps of bfloat16 and more, so that a hundredth of the way is a step


@dataclass(slots=True)
class _ModelCopy:
    source: weakref.ref[torch.nn.Module]
    copy: weakref.ref[torch.nn.Module]
    made: Place
    begun_with: dict[str, torch.Tensor]  # a few values of each parameter when it was made


class AverageObserver:
    """Copies of modules, and a few of their values when they were made."""

    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._copies: list[_ModelCopy] = []
        # what is trained, and a sample of it from the beginning
        self._trained: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []

    def before_update(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        if steps == 0:
            with unfollowed():
                self._trained += [
                    (weakref.ref(p), _some(p))
                    for group in optimizer.param_groups
                    for p in group["params"]
                    if _is_usable(p)
                ]

    def after_update(self, optimizer: torch.optim.Optimizer, loss: float | None) -> None:
        """Nothing: an average is judged when the run is over."""

    def optimizer_loaded(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing either."""

    def copied(self, source: Any, result: Any) -> None:
        if not isinstance(source, torch.nn.Module) or not isinstance(result, torch.nn.Module):
            return
        if len(self._copies) < _KEPT and not torch.compiler.is_compiling():
            with unfollowed():
                begun = {name: _some(p) for name, p in result.named_parameters() if _is_usable(p)}
            self._copies.append(_ModelCopy(weakref.ref(source), weakref.ref(result), here(), begun))

    def facts(self) -> tuple[AverageFacts, ...]:
        """Copies in half precision that are still there and were written to.

        Plain tensors are looked for only when a whole script is over: that is a look at all objects.
        """
        with unfollowed():
            return (*self._half_copies(), *(self._half_tensors() if self._tracer is not None else ()))

    def _half_copies(self) -> Iterator[AverageFacts]:
        for known in self._copies:
            source, copy = known.source(), known.copy()
            if source is None or copy is None:
                continue
            now, trained = dict(copy.named_parameters()), dict(source.named_parameters())
            writes, values, still, source_moved, away, stuck = 0, 0, 0, 0, 0, 0
            dtype = ""
            for name, before in known.begun_with.items():
                if name not in now or name not in trained or now[name].dtype not in HALF:
                    continue
                value, original = now[name], trained[name]
                if original.shape != value.shape:
                    continue
                writes, dtype = max(writes, value._version), str(value.dtype).removeprefix("torch.")
                rounded = before.to(value.dtype)
                values += rounded.numel()
                still += int((_some(value) == rounded).sum())
                source_moved += int((_some(original).to(value.dtype) != rounded).sum())
                left = _left_behind(_some(value), _some(original), rounded, value._version)
                away, stuck = away + left[0], stuck + left[1]
            if values:
                yield AverageFacts(dtype, writes, values, still, source_moved, known.made, away, stuck)

    def _half_tensors(self) -> Iterator[AverageFacts]:
        """Averages kept as plain tensors: as often written to as an average is, of the shape of a weight."""
        found = [t for t in living((torch.Tensor,)) if type(t) is torch.Tensor]
        often = [t for t in found if t.dtype in HALF and _is_usable(t) and t._version >= _OFTEN]
        values = still = moved = 0
        first: torch.Tensor | None = None
        for reference, begun in self._trained if often else ():
            parameter = reference()
            for tensor in often if parameter is not None else ():
                rounded = begun.to(tensor.dtype)
                if parameter is None or tensor.shape != parameter.shape or tensor.device != parameter.device:
                    continue
                same = int((_some(tensor) == rounded).sum())
                if 2 * same > rounded.numel():  # it began as this weight, and most of it is still that
                    first = tensor if first is None else first
                    values, still = values + rounded.numel(), still + same
                    moved += int((_some(parameter).to(tensor.dtype) != rounded).sum())
                    break
        if first is not None:
            made = place_at(self._tracer.written_at(first) if self._tracer is not None else None)
            dtype = str(first.dtype).removeprefix("torch.")
            yield AverageFacts(dtype, first._version, values, still, moved, made)


def _left_behind(
    now: torch.Tensor, trained: torch.Tensor, begun: torch.Tensor, writes: int
) -> tuple[int, int]:
    """How many values are far from what they follow, and how many of these have never moved."""
    if writes < _OFTEN:
        return 0, 0
    far = (trained.to(now.device).float() - now.float()).abs() >= _FAR * now.float().abs()
    return int(far.sum()), int((far & (now == begun)).sum())


def _is_usable(parameter: torch.Tensor) -> bool:
    return is_plain(parameter) and parameter.is_floating_point() and parameter.numel() > 0


def _some(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().flatten()
    return flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED].clone()
