"""`check(loader)`: the first batches of a loader, examined like a data file. The random generators are put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from stayfinite.data import fit
from stayfinite.data.examine import DataVerdict, describe, judge, watch_for
from stayfinite.data.rows import RowState, duplicates, update
from stayfinite.data.uses import use_of
from stayfinite.findings.subjects.data_set import DataProblem, DataSet, Expectation, Samples, Use

if TYPE_CHECKING:
    import torch

_MOST_HELD = 4_000_000
_DEEPEST = 6


def check(
    loader: Iterable[Any],
    n: int | None = 100,
    *,
    classes: int | None = None,
    ignore_index: int = -100,
    value_range: tuple[float, float] | None = None,
    labels: Iterable[str] = (),
) -> DataVerdict:
    """Examine the first `n` batches (None: all) of a DataLoader, or of anything that yields batches.

    A batch is a tensor, an array, or a nesting of dicts, lists and tuples of them; the first dimension counts the
    samples. In a pair, the second element is taken for labels where it holds integers. Samples are numbered in the
    order in which the loader gives them. Nothing is trained or changed: the generators of Python, numpy and torch are
    put back, so a shuffled loader gives the same order afterwards.
    """
    low, high = value_range if value_range is not None else (None, None)
    expected = Expectation(low, high, classes=classes, ignore_index=ignore_index)
    data = DataSet(type(loader).__name__, "batches", expected=expected)
    named = set(labels)
    states: dict[str, tuple[RowState, Use, str, tuple[int, ...]]] = {}
    held: dict[str, torch.Tensor] = {}
    seen = 0
    with _generators_put_back(loader):
        batches = iter(loader)
        for number, batch in enumerate(islice(batches, n)):
            size = 0
            for name, tensor in _tensors(batch, ""):
                if tensor.dim() == 0:
                    continue
                size = max(size, tensor.shape[0])
                _take(name, tensor, seen, number, named, states, held, data)
            seen += size
    if not states:
        data.problems.append(DataProblem(data.path, "the loader gave no tensors to look at", "empty"))
    for name, (state, use, dtype, shape) in states.items():
        made = describe(state, name, use, dtype, (state.rows, *shape[1:]))
        if state.still is not None and state.rows > 1:
            made.constant_columns = state.still.tolist()
        pairs = [pair for pair in duplicates(state) if pair[0] not in state.zero.first]
        made.duplicates = Samples(len(pairs), [row for row, _ in pairs[: Samples.MOST]])
        made.duplicate_of = [other for _, other in pairs[: Samples.MOST]]
        data.arrays.append(made)
    fit.find_boxes(data, held)
    fit.find_alignments(data, held)
    return DataVerdict(data, judge(data))


def _take(
    name: str,
    tensor: torch.Tensor,
    first: int,
    number: int,
    labels: set[str],
    states: dict[str, tuple[RowState, Use, str, tuple[int, ...]]],
    held: dict[str, torch.Tensor],
    data: DataSet,
) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    if name not in states:
        use = Use.LABEL if name in labels else use_of(name, dtype, shape)
        states[name] = (RowState(), use, dtype, shape)
    state, use, _, known = states[name]
    rows = tensor.detach().cpu().reshape(shape[0], -1)
    if shape[1:] != known[1:]:
        # Batches of different widths (padding to the longest) are looked at, but not compared column by column.
        state.still, state.first_row = None, rows[0].clone()
    watch = watch_for(use, data.expected)
    if shape[0] == 0 or rows.shape[1] == 0:
        data.problems.append(DataProblem(data.path, f"{name}: batch {number} is empty", "empty"))
        return
    several = rows.shape[1] > 1
    update(state, rows, first, replace(watch, samples=several, duplicates=watch.duplicates and several))
    if use in (Use.LABEL, Use.LENGTH, Use.BOX) and shape[1:] == known[1:]:
        fit.hold(held, name, rows, shape, _MOST_HELD)


def _tensors(node: Any, name: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a batch by name: keys, "input" and "labels" for a pair, else numbers."""
    import torch

    if isinstance(node, torch.Tensor):
        if node.layout == torch.strided and not node.is_quantized:
            yield name or "input", node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if depth < _DEEPEST:
                yield from _tensors(value, f"{name}.{key}".lstrip("."), depth + 1)
    elif isinstance(node, (list, tuple)) and depth < _DEEPEST:
        for index, value in enumerate(node):
            yield from _tensors(value, _part(node, index, name), depth + 1)
    elif type(node).__module__ == "numpy" and hasattr(node, "shape") and node.dtype.kind in "fiub":
        yield name or "input", torch.as_tensor(node)


def _part(node: Any, index: int, name: str) -> str:
    if hasattr(node, "_fields"):
        return f"{name}.{node._fields[index]}".lstrip(".")
    if not name and len(node) == 2:
        second = node[1]
        whole = hasattr(second, "is_floating_point") and not second.is_floating_point()
        return "input" if index == 0 else "labels" if whole else "target"
    return f"{name}.{index}".lstrip(".")


@contextmanager
def _generators_put_back(loader: Any) -> Iterator[None]:
    """The generators of Python, numpy (where it is loaded), torch and the loader itself, as they were."""
    import torch

    python, numbers = random.getstate(), torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else None
    owners = (loader, getattr(loader, "sampler", None))
    own = {
        id(g): g
        for g in (getattr(owner, "generator", None) for owner in owners)
        if isinstance(g, torch.Generator)
    }
    states = [(generator, generator.get_state()) for generator in own.values()]
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(numbers)
        if numpy is not None:
            numpy.random.set_state(drawn)
        for generator, state in states:
            generator.set_state(state)
