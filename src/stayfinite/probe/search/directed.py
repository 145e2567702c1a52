"""Looks for a batch on which a step fails: unusual batches first, then descent towards the edge of each risky op."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stayfinite.findings.subjects.probed_model import SearchResult
from stayfinite.probe import tree
from stayfinite.probe.conditions import SINGLE_TOKEN, edge_conditions
from stayfinite.probe.lab import Lab
from stayfinite.probe.record import Record
from stayfinite.probe.search.edges import Target, targets
from stayfinite.probe.search.integers import integer_batches
from stayfinite.probe.search.ranges import Box, box
from stayfinite.probe.search.simplify import simplified
from stayfinite.probe.search.written_test import write_test
from stayfinite.watch.finite import all_finite

_TIMES = (1.0, 10.0, 100.0, 1000.0)
"""Where no range is declared: as the batch shows, then wider. Only the first two are held against the model."""
_STEPS = 40
_SMALLEST_STEP = 1e-4
_STARTS = 64
_MOST_TARGETS = 24
_SIMPLIFY_SECONDS = 3.0
_NEARLY_ZERO = -11.0
_NUDGES = 60


@dataclass(slots=True)
class Search:
    """One search and its count of trials."""

    lab: Lab
    ends: float
    progress: Callable[[str], None]
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(7))
    trials: int = 0

    def over(self) -> bool:
        return time.monotonic() > self.ends

    def fails(self, batch: Any) -> bool:
        self.trials += 1
        # A NaN that the search itself put in is no failure of the model.
        return all_finite(list(tree.inputs(batch).values())) and self.lab.run(batch).bad is not None

    # -- batches that need no gradient ------------------------------------------------------------------------

    def unusual(self, space: Box) -> Iterator[tuple[str, Any]]:
        """The edge cases inside the box, its corners, and changes of whole numbers and masks."""
        batch = self.lab.batch
        for condition in edge_conditions(self.lab.probe, batch, self.lab.parts.model):
            # the edge cases judge that one
            if condition.expected == "normal" and condition.name != SINGLE_TOKEN:
                yield condition.name, self._inside(condition.batch, space)
        inputs = tree.inputs(batch)
        for part, word in ((0.0, "lower end"), (1.0, "upper end"), (0.5, "middle")):
            for name, tensor in inputs.items():
                yield (
                    f"{name} at the {word} of its range",
                    tree.replaced(batch, {name: space.fill(name, tensor, part)}),
                )
        yield from integer_batches(batch, self.lab.parts.model, self.generator)

    def _inside(self, batch: Any, space: Box) -> Any:
        found = {n: space.clamp(n, t) for n, t in tree.inputs(batch).items() if n in space.low}
        return tree.replaced(batch, found)

    # -- descent ------------------------------------------------------------------------------------------------

    def starts(self, space: Box) -> Iterator[dict[str, Tensor]]:
        """The batch itself, random points of the box at several scales, its corners."""
        inputs = {n: t for n, t in tree.inputs(self.lab.batch).items() if n in space.low}
        yield {n: space.clamp(n, t) for n, t in inputs.items()}
        for number in range(_STARTS):
            if number % 3 == 1:  # near the batch
                noise = {n: torch.randn(t.shape, generator=self.generator).to(t) for n, t in inputs.items()}
                yield {n: space.clamp(n, t + 0.1 * space.width(n) * noise[n]) for n, t in inputs.items()}
            elif number % 3 == 2:  # corners
                drawn = {n: space.draw(n, t, self.generator) for n, t in inputs.items()}
                yield {n: torch.where(d > (space.low[n] + space.high[n]) / 2, torch.full_like(d, space.high[n]),
                                      torch.full_like(d, space.low[n])) for n, d in drawn.items()}  # fmt: skip
            else:
                yield {n: space.draw(n, t, self.generator) for n, t in inputs.items()}

    def graph(self, values: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]] | None:
        """The loss of a batch with these inputs, connected to them."""
        free = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
        lab = self.lab
        try:
            torch.manual_seed(20)
            lab.parts.model.train()
            loss = lab.loss_of(lab.parts, tree.replaced(tree.copied(lab.batch), free)).total
        except Exception:  # noqa: BLE001 - inputs that the user's code refuses lead nowhere
            return None
        finally:
            lab.restore()
        return loss, free

    def descend(
        self, values: dict[str, Tensor], key: str, space: Box, whole: bool
    ) -> dict[str, Tensor] | None:
        """From one start towards the edge of one op; the inputs that fail, or None."""
        step = 0.5
        best: float | None = None
        kept = values
        for _ in range(_STEPS):
            if self.over() or step < _SMALLEST_STEP:
                return None
            made = self.graph(kept)
            if made is None or not made[0].requires_grad:
                return None
            loss, free = made
            target = next((t for t in targets(loss) if t.key == key), None)
            if target is None:
                return None
            distance = target.distance.sum() if whole else target.distance.min()
            now = float(distance.detach())
            if best is None:
                best = now
            slopes = torch.autograd.grad(distance, list(free.values()), allow_unused=True)
            if not any(s is not None and torch.isfinite(s).all() and s.any() for s in slopes):
                return None
            better = False
            for moved in self._tries(kept, dict(zip(free, slopes, strict=True)), target, step, space):
                value, failing = self._measure(moved, key, whole)
                if failing:
                    return moved
                if value is not None and value < best:
                    best, kept, better = value, moved, True
            step = min(step * 1.5, 0.5) if better else step * 0.4
            if target.to_zero and best < _NEARLY_ZERO:
                return self._nudged(kept, space)
        return None

    def _tries(
        self,
        values: dict[str, Tensor],
        slopes: dict[str, Tensor | None],
        target: Target,
        step: float,
        space: Box,
    ) -> Iterator[dict[str, Tensor]]:
        yield self._try(values, slopes, target, step, space)
        if target.to_zero:
            # The distance is a logarithm, so this is Newton's step to the zero of the operand itself.
            squares = sum(float(s.double().square().sum()) for s in slopes.values() if s is not None)
            if math.isfinite(squares) and squares > 0:
                yield {
                    n: v if (s := slopes[n]) is None else space.clamp(n, v - torch.nan_to_num(s) / squares)
                    for n, v in values.items()
                }

    def _nudged(self, values: dict[str, Tensor], space: Box) -> dict[str, Tensor] | None:
        """Nearly zero: the last bits of the inputs decide whether it is exactly so."""
        for _ in range(_NUDGES):
            if self.over():
                return None
            moved = {
                n: space.clamp(
                    n, v + (v.abs() + 1e-3) * torch.randn(v.shape, generator=self.generator).to(v) * 1e-7
                )
                for n, v in values.items()
            }
            if self.fails(tree.replaced(self.lab.batch, moved)):
                return moved
        return None

    def _try(
        self,
        values: dict[str, Tensor],
        slopes: dict[str, Tensor | None],
        target: Target,
        step: float,
        space: Box,
    ) -> dict[str, Tensor]:
        moved: dict[str, Tensor] = {}
        for name, value in values.items():
            slope = slopes[name]
            if slope is None:
                moved[name] = value
                continue
            slope = torch.nan_to_num(slope)
            largest = float(slope.abs().max())
            # Far edges are reached by the sign alone, as fast as the box allows; edges at zero need the direction.
            way = slope.sign() if not target.to_zero or step > 0.1 else slope / max(largest, 1e-30)
            moved[name] = space.clamp(name, value - step * space.width(name) * way)
        return moved

    def _measure(self, values: dict[str, Tensor], key: str, whole: bool) -> tuple[float | None, bool]:
        batch = tree.replaced(self.lab.batch, values)
        if self.fails(batch):
            return None, True
        made = self.graph(values)
        if made is None:
            return None, False
        target = next((t for t in targets(made[0]) if t.key == key), None)
        if target is None:
            return None, False
        return float((target.distance.sum() if whole else target.distance.min()).detach()), False

    def directed(self, space: Box) -> tuple[str, Any] | None:
        """Every target from every start in turn, the riskiest first, until something fails or time is over."""
        if not space.low:
            return None
        for number, start in enumerate(self.starts(space)):
            if self.over():
                return None
            batch = tree.replaced(self.lab.batch, start)
            if self.fails(batch):
                return "a point of the range", batch
            made = self.graph(start)
            if made is None or not made[0].requires_grad:
                continue
            for key in _riskiest(made[0]):
                self.progress(
                    f"directed search: {key.partition('/')[0].removesuffix('Backward0').lower()}, start {number + 1}"
                )
                found = self.descend(start, key, space, whole=number % 2 == 1)
                if found is not None:
                    name = key.partition("/")[0].removesuffix("Backward0").removesuffix("Backward1").lower()
                    return f"inputs driven towards the edge of {name}", tree.replaced(self.lab.batch, found)
                if self.over():
                    return None
        return None


def _riskiest(loss: Tensor) -> list[str]:
    """The targets, those nearest to their edge first."""
    seen = {t.key: float(t.distance.detach().min()) for t in targets(loss)}
    return sorted(seen, key=lambda key: seen[key])[:_MOST_TARGETS]


def search_input(lab: Lab, record: Record, budget: float, progress: Callable[[str], None]) -> None:
    """Search within the declared range; without one, within that of the batch and then beyond it."""
    begin = time.monotonic()
    search = Search(lab, begin + budget, progress)
    stages = [box(lab.probe, lab.batch, times) for times in _TIMES]
    if stages[0].declared or not stages[0].low:
        stages = stages[:1]
    for number, space in enumerate(stages):
        # Wider ranges share what time is left, so that the first cannot use up all of it.
        search.ends = time.monotonic() + (begin + budget - time.monotonic()) / (len(stages) - number)
        found = _search(search, space)
        if found is not None:
            record.searches.append(_result(search, space, found, begin, record.name))
            return
    space = stages[min(1, len(stages) - 1)]  # what was searched in full, or nearly so
    seconds = time.monotonic() - begin
    reason = (
        "not reachable within the range and budget"
        if space.low
        else "no unusual batch fails, and there is no float input to search"
    )
    record.searches.append(
        SearchResult(False, seconds, search.trials, space.pairs, space.declared, reason=reason)
    )


def _search(search: Search, space: Box) -> tuple[str, Any] | None:
    for name, batch in search.unusual(space):
        search.progress(f"directed search: {name}")
        if search.over():
            return None
        if search.fails(batch):
            return name, batch
    return search.directed(space)


def _result(search: Search, space: Box, found: tuple[str, Any], begin: float, name: str) -> SearchResult:
    condition, batch = found
    lab = search.lab
    where = lab.locate(batch)
    smaller = simplified(batch, lab.batch, search.fails, time.monotonic() + _SIMPLIFY_SECONDS)
    there = lab.locate(smaller)
    if (there.file, there.line, there.op) == (where.file, where.line, where.op):  # and not another failure
        batch = smaller
    run = lab.run(batch)
    return SearchResult(
        True,
        time.monotonic() - begin,
        search.trials,
        space.pairs,
        space.declared,
        space.times,
        condition,
        run.what,
        where,
        write_test(name, batch, run.what),
        "found",
    )
