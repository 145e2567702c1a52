"""The unusual batches that a training may meet: made from the batch given, each with a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stayfinite.probe import tree
from stayfinite.probe.target import Probe

SINGLE_TOKEN = "a single token"
_IGNORED = -100
"""The label that torch's losses ignore by default."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One unusual batch."""

    name: str
    batch: Any
    expected: str = "normal"  # "beyond": outside the range that the data shows


def declared(probe: Probe, name: str) -> tuple[float, float] | None:
    """The range that was declared for one input: for all of them, or under its name or key."""
    given = probe.range
    if given is None or not isinstance(given, Mapping):
        return given
    for key, pair in given.items():
        if name == key or name.endswith((f"[{key!r}]", f"[{key}]", f".{key}")):
            return pair
    return None


def _fits(probe: Probe, name: str, tensor: Tensor) -> Tensor:
    bounds = declared(probe, name)
    return tensor if bounds is None else tensor.clamp(*bounds)


def _with(probe: Probe, batch: Any, values: Mapping[str, Tensor]) -> Any:
    return tree.replaced(batch, {name: _fits(probe, name, value) for name, value in values.items()})


def edge_conditions(probe: Probe, batch: Any, model: nn.Module) -> Iterator[Condition]:
    """All of them that apply to this batch."""
    positive = tree.scales(batch)
    inputs = {
        n: t for n, t in tree.inputs(batch).items() if n not in positive or declared(probe, n) is not None
    }
    if inputs:
        yield from _of_values(probe, batch, inputs)
    yield from _of_samples(batch)
    yield from _of_masks(batch)
    yield from _of_integers(batch, model)


def _of_values(probe: Probe, batch: Any, inputs: Mapping[str, Tensor]) -> Iterator[Condition]:
    yield Condition(
        "all-zero inputs", _with(probe, batch, {n: torch.zeros_like(t) for n, t in inputs.items()})
    )
    for name, tensor in inputs.items():
        if len(inputs) > 1:
            yield Condition(f"{name} all zero", _with(probe, batch, {name: torch.zeros_like(tensor)}))
        if tensor.dim() and tensor.shape[0] > 1:
            one = tensor.clone()
            one[0] = 0
            yield Condition(f"{name} zero in one sample", _with(probe, batch, {name: one}))
    constant = {n: t.mean().expand_as(t).contiguous() for n, t in inputs.items()}
    yield Condition("constant inputs", _with(probe, batch, constant))
    flat = {n: t.flatten(1).mean(1).view(-1, *[1] * (t.dim() - 1)).expand_as(t).contiguous()
            for n, t in inputs.items() if t.dim() > 1}  # fmt: skip
    if flat:
        yield Condition("every sample constant", _with(probe, batch, flat))
    for times in (1e-3, 1e-6):
        yield Condition(
            f"tiny inputs (x{times:g})", _with(probe, batch, {n: t * times for n, t in inputs.items()})
        )
    if any(declared(probe, name) is not None for name in inputs):
        for side, word in ((1, "upper"), (0, "lower")):
            edge = {n: torch.full_like(t, pair[side]) for n, t in inputs.items()
                    if (pair := declared(probe, n)) is not None}  # fmt: skip
            yield Condition(f"inputs at the {word} end of their range", tree.replaced(batch, edge))
        return
    for factor in (10, 100, 1000, 10000):
        scaled = {n: t * factor for n, t in inputs.items()}
        yield Condition(f"huge inputs (x{factor})", tree.replaced(batch, scaled), "beyond")


def _of_samples(batch: Any) -> Iterator[Condition]:
    count = tree.samples(batch)
    if count is None or count < 2:
        return
    yield Condition("a single sample", tree.sliced(batch, 1, 0, count))
    rows = {n: t for n, t in tree.named(batch).items() if t.dim() and t.shape[0] == count}
    yield Condition("repeated samples", tree.changed(batch, lambda t: t[:1].expand_as(t).contiguous(), rows))
    lengths = {t.shape[1] for t in rows.values() if t.dim() >= 2}
    sequences = [t for t in rows.values() if t.dim() == 2 and not t.is_floating_point()]
    if len(lengths) == 1 and sequences and (size := lengths.pop()) > 1:
        yield Condition(SINGLE_TOKEN, tree.sliced(batch, 1, 1, size))


def _of_masks(batch: Any) -> Iterator[Condition]:
    for name, mask in tree.masks(batch).items():
        for value in (0, 1):
            word = "True" if value else "False"
            if mask.dim() > 1 or (mask.dim() and mask.shape[0] > 1):
                row = mask.clone()
                row[0] = value
                yield Condition(f"{name}: one row all {word}", tree.replaced(batch, {name: row}))
            yield Condition(f"{name}: all {word}", tree.replaced(batch, {name: torch.full_like(mask, value)}))


def _of_integers(batch: Any, model: nn.Module) -> Iterator[Condition]:
    numbers = tree.integers(batch)
    sizes = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, tensor in numbers.items():
        ignores = bool((tensor == _IGNORED).any())
        if ignores:
            yield Condition(
                f"{name}: all labels ignored", tree.replaced(batch, {name: torch.full_like(tensor, _IGNORED)})
            )
            if tensor.dim() > 1:
                row = tensor.clone()
                row[0] = _IGNORED
                yield Condition(f"{name}: one row ignored", tree.replaced(batch, {name: row}))
        least = (
            int(tensor.min())
            if not ignores
            else int(tensor[tensor != _IGNORED].min())
            if (tensor != _IGNORED).any()
            else 0
        )
        values = {least, int(tensor.max())}
        if any(int(tensor.max()) < size for size in sizes) and tensor.dim() > 1 and least >= 0:
            values.add(0)  # padding
        for value in sorted(values):
            yield Condition(
                f"{name}: all {value}", tree.replaced(batch, {name: torch.full_like(tensor, value)})
            )
