"""Observes copies of models (averages, teachers): whether a copy in half precision moves when it is written to."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import AverageFacts, Place
from stayfinite.launch.run_log import here
from stayfinite.replay.float32 import HALF
from stayfinite.replay.measure import is_plain

_SAMPLED = 64  # values of each parameter that are remembered
_KEPT = 16


@dataclass(slots=True)
class _Copy:
    source: weakref.ref[torch.nn.Module]
    copy: weakref.ref[torch.nn.Module]
    made: Place
    begun_with: dict[str, torch.Tensor]  # a few values of each parameter when it was made


class Averages:
    """Copies of modules, and a few of their values when they were made."""

    def __init__(self, only_looking: Callable[[], AbstractContextManager[None]]) -> None:
        self._only_looking = only_looking
        self._copies: list[_Copy] = []

    def copied(self, source: Any, result: Any) -> None:
        if not isinstance(source, torch.nn.Module) or not isinstance(result, torch.nn.Module):
            return
        if len(self._copies) < _KEPT and not torch.compiler.is_compiling():
            with self._only_looking():
                begun = {name: _some(p) for name, p in result.named_parameters() if _is_usable(p)}
            self._copies.append(_Copy(weakref.ref(source), weakref.ref(result), here(), begun))

    def facts(self) -> tuple[AverageFacts, ...]:
        """Copies in half precision that are still there and were written to."""
        with self._only_looking():
            return tuple(self._half_copies())

    def _half_copies(self) -> Iterator[AverageFacts]:
        for known in self._copies:
            source, copy = known.source(), known.copy()
            if source is None or copy is None:
                continue
            now, trained = dict(copy.named_parameters()), dict(source.named_parameters())
            writes, values, still, source_moved = 0, 0, 0, 0
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
            if values:
                yield AverageFacts(dtype, writes, values, still, source_moved, known.made)


def _is_usable(parameter: torch.Tensor) -> bool:
    return is_plain(parameter) and parameter.is_floating_point() and parameter.numel() > 0


def _some(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().flatten()
    return flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED].clone()
