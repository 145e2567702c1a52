"""What a trace notices on the way: arrivals in something that lasts, comparisons, raised errors."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import Comparison, RoundedIntegers
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.replay.op_journal import Entry
from stayfinite.replay.running import Running
from stayfinite.replay.sites import Site, place_at, written_by_user

COMPARES = {"gt", "lt", "ge", "le", "eq"}
_ARRIVALS_KEPT = 10_000
_ROUNDED_KEPT = 16
WHOLE_UP_TO = {torch.bfloat16: 256.0, torch.float16: 2048.0}  # larger whole numbers are rounded


@dataclass(slots=True)
class Arrival:
    """A bad value that reached something that lasts: a gradient, a parameter, a buffer."""

    kind: str
    name: str | None
    entry: int
    roots: frozenset[int]
    swell: int | None = None


@dataclass(slots=True)
class Raised:
    """An op that raised an exception."""

    birth: TracedBirth
    error: BaseException
    entry: int
    step: int
    op: str
    recovered: bool = False  # the same op went well later


class Noticed:
    """Lists of what was noticed, in the order it happened."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.comparisons: list[Comparison] = []
        self.raised: list[Raised] = []
        self.rounded: list[RoundedIntegers] = []

    def arrive(self, kind: str, name: str | None, entry: Entry) -> None:
        """Remember that the bad value of this entry is in something that lasts."""
        if len(self.arrivals) < _ARRIVALS_KEPT:
            self.arrivals.append(Arrival(kind, name, entry.id, entry.roots, entry.swell))

    def succeeded(self, op: str) -> None:
        """An op that raised before went well now."""
        for raised in self.raised:
            raised.recovered |= raised.op == op

    def compare(self, running: Running, args: Sequence[Any], result: Any) -> None:
        """Remember that the script compared a bad number: `loss > 100` is False for NaN."""
        bad = next((read for read in running.reads if read.bad and read.tensor.numel() == 1), None)
        site = running.site
        if bad is None or site is None or not written_by_user():
            return
        if not isinstance(result, torch.Tensor) or result.numel() != 1:
            return
        threshold = args[1] if len(args) > 1 else None
        if isinstance(threshold, torch.Tensor):
            threshold = float(threshold.detach()) if threshold.numel() == 1 else None
        self.comparisons.append(
            Comparison(
                running.op.bare,
                place_at(site),
                bool(result),
                float(bad.tensor.detach()),
                float(threshold) if isinstance(threshold, (int, float)) else None,
            )
        )

    def round(self, running: Running, output: torch.Tensor, largest: float) -> None:
        """Remember whole numbers (positions, time steps) that a half dtype cannot tell apart."""
        limit = WHOLE_UP_TO.get(output.dtype)
        if limit is None or largest <= limit or output.dim() != 1 or len(self.rounded) >= _ROUNDED_KEPT:
            return
        source = next((read.tensor for read in running.reads if read.name == "self"), None)
        counts = running.op.bare == "arange" or (source is not None and not source.dtype.is_floating_point)
        site, distinct = running.site, int(torch.unique(output).numel())
        if not counts or site is None or (source is not None and distinct >= torch.unique(source).numel()):
            return
        if distinct < output.numel():
            place = place_at(site)
            dtype = str(output.dtype).removeprefix("torch.")
            self.rounded.append(RoundedIntegers(place, dtype, largest, output.numel(), distinct))

    def look(self, tensor: torch.Tensor, result: Any, site: Site | None) -> None:
        """Remember that isnan() was asked about a single infinite number: it says False."""
        if (
            site is None
            or not written_by_user()
            or tensor.numel() != 1
            or not isinstance(result, torch.Tensor)
            or bool(result)
        ):
            return
        value = float(tensor.detach())
        if math.isinf(value):
            self.comparisons.append(Comparison("isnan", place_at(site), False, value, None))


class Retained:
    """Tensors on which the script called retain_grad(); their gradients count as arrivals."""

    def __init__(self) -> None:
        self._tensors: list[weakref.ref[torch.Tensor]] = []

    def add(self, tensor: torch.Tensor) -> None:
        self._tensors.append(weakref.ref(tensor))

    def gradients(self) -> list[torch.Tensor]:
        """The gradients there are now; the list is emptied."""
        tensors = [reference() for reference in self._tensors]
        self._tensors = []
        return [tensor.grad for tensor in tensors if tensor is not None and tensor.grad is not None]
