"""Logits: on a sampled step, the largest number that goes into a softmax or an exp, and the line that does it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from stayfinite.hooks import Listening, listen

_OURS, _TORCH = str(Path(__file__).resolve().parents[2]), str(Path(torch.__file__).resolve().parent)
_EXP_LIMITS = {torch.float16: 11.0898, torch.bfloat16: 88.7228, torch.float32: 88.7228, torch.float64: 709.78}
_MOST_PLACES = 16


class Logits:
    """Listens to softmax, attention and exp while it is attached. In compiled code they cannot be heard."""

    def __init__(self) -> None:
        self._listening: Listening | None = None
        self._first = True
        self._largest: list[Tensor] = []
        self._places: list[str | None] = []  # of those that float16 must hold
        self._exponents: dict[str, tuple[Tensor, float]] = {}

    @staticmethod
    def can_be_heard() -> bool:
        """Once something is compiled, replacing a function of torch would have it compiled anew."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        return dynamo is None or not sum(dynamo.counters["frames"].values())

    def attach(self) -> None:
        self.detach()
        self._largest, self._places, self._exponents = [], [], {}
        first, self._first = self._first, False  # in which a script may compile what it will use
        if not first and self.can_be_heard():
            self._listening = Listening()
            self._listening.add(listen("softmax", self._softmax))
            self._listening.add(listen("attention", self._attention))
            self._listening.add(listen("exponential", self._exponential))

    def detach(self) -> None:
        if self._listening is not None:
            self._listening.stop()
            self._listening = None

    def _softmax(self, original: Any, given: Any = None, *args: Any, **kwargs: Any) -> Any:
        if given is None:
            return original(*args, **kwargs)
        if _measurable(given) and given.dim() > 2:  # attention has heads or samples before its rows
            self._largest.append(given.detach().amax())
            self._places.append(_line() if given.dtype is torch.float16 else None)
        return original(given, *args, **kwargs)

    def _attention(self, original: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        """Of the first sample alone: the product is not kept anywhere, so it is computed again."""
        if _measurable(query) and _measurable(key) and query.dim() > 2:
            scale = kwargs.get("scale") or 1 / math.sqrt(query.shape[-1])
            first, keys = query.detach()[:1].float(), key.detach()[:1].float()
            if first.shape[1:-2] == keys.shape[1:-2]:
                logits = first @ keys.transpose(-2, -1) * scale
                self._largest.append(logits.amax())
                self._places.append(None)  # a fused attention adds them up in float32
        return original(query, key, *args, **kwargs)

    def _exponential(self, original: Any, given: Any = None, *args: Any, **kwargs: Any) -> Any:
        if given is None:
            return original(*args, **kwargs)
        if _measurable(given) and given.dtype in _EXP_LIMITS:
            place = _line()
            largest = given.detach().amax()
            known = self._exponents.get(place)
            if known is not None:
                largest = torch.maximum(known[0], largest.to(known[0]))
            if known is not None or len(self._exponents) < _MOST_PLACES:
                self._exponents[place] = (largest, _EXP_LIMITS[given.dtype])
        return original(given, *args, **kwargs)

    def scalars(self) -> list[Tensor]:
        return [*self._largest, *(value for value, _ in self._exponents.values())]

    def told(
        self, numbers: Iterator[float]
    ) -> tuple[float | None, dict[str, float], dict[str, tuple[float, float]]]:
        """The largest logit; by line the largest that float16 holds, and the largest argument of an exponential."""
        logits = list(islice(numbers, len(self._largest)))
        scores: dict[str, float] = {}
        for place, value in zip(self._places, logits, strict=True):
            if place is not None and not value <= scores.get(place, -math.inf):  # NaN is the largest
                scores[place] = value
        exponents = {place: (next(numbers), limit) for place, (_, limit) in self._exponents.items()}
        seen = [value for value in logits if value > -math.inf]  # else all is masked
        return max(seen, default=None), scores, exponents


def _measurable(value: Any) -> bool:
    return (
        type(value) in (Tensor, torch.nn.Parameter)
        and value.is_floating_point()
        and value.layout is torch.strided
        and value.device.type != "meta"
        and value.numel() > 0
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def _line() -> str:
    """The innermost line of the user's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, _TORCH)):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else "?"
