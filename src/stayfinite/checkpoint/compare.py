"""Two checkpoints, tensor by tensor: what is only in one, what has another shape, how far the values are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stayfinite.findings.subjects.checkpoint import Tensor
from stayfinite.readers.checkpoint import Location, read_structure
from stayfinite.readers.checkpoint.contents import TensorRef
from stayfinite.readers.checkpoint.measure import comparable
from stayfinite.readers.checkpoint.pieces import pieces, readable, whole

if TYPE_CHECKING:
    import torch

_MOST_WHOLE = 256 << 20


@dataclass(slots=True)
class Difference:
    """One tensor in two checkpoints. `relative` is the norm of the difference over the norm of the other's."""

    tensor: str
    status: str
    """same, changed, only-here, only-there, shape, dtype, not-compared."""
    largest: float | None = None
    relative: float | None = None
    detail: str = ""


def compare(here: Location, there: Location) -> list[Difference]:
    """Every tensor of both; the largest relative change first, then what cannot be compared."""
    left, right = _tensors(here), _tensors(there)
    found: list[Difference] = []
    for key, (tensor, ref) in left.items():
        if key not in right:
            found.append(Difference(tensor.name, "only-here"))
        else:
            found.append(_difference(tensor.name, ref, right[key][1]))
    found += [Difference(tensor.name, "only-there") for key, (tensor, _) in right.items() if key not in left]
    return sorted(found, key=_weight, reverse=True)


def _weight(difference: Difference) -> tuple[bool, float]:
    change = difference.relative
    if change is None:
        return (difference.status != "same", 0.0)
    return (difference.status != "same", math.inf if math.isnan(change) else change)


def _tensors(location: Location) -> dict[tuple[str, str], tuple[Tensor, TensorRef]]:
    """By kind and name inside its own state dict, so that different formats can be compared."""
    state = read_structure(location)
    pairs = zip(state.checkpoint.tensors, state.leaves, strict=True)
    return {(t.kind.value, t.key): (t, leaf) for t, leaf in pairs if isinstance(leaf, TensorRef)}


def _difference(name: str, left: TensorRef, right: TensorRef) -> Difference:
    if left.shape != right.shape:
        return Difference(name, "shape", detail=f"{list(left.shape)} here, {list(right.shape)} there")
    trouble = left.trouble() or right.trouble()
    if trouble or not readable(left.dtype) or not readable(right.dtype):
        return Difference(name, "not-compared", detail=trouble or f"values of type {left.dtype} are not read")
    large = max(left.numel * left.item_size, right.numel * right.item_size) > _MOST_WHOLE
    if large and not (left.contiguous and right.contiguous):
        return Difference(name, "not-compared", detail="too large and not in the same order")
    largest = squares = size = 0.0
    for a, b in _pairs(left, right, large):
        apart = (a - b).abs()
        apart[a == b] = 0.0  # equal infinities
        bad = ~apart.isfinite()
        largest = math.nan if bad.any() or math.isnan(largest) else max(largest, float(apart.max()))
        squares += float(apart.square().sum())
        size += float(b.square().sum())
    if largest == 0.0:
        status = "same" if left.dtype == right.dtype else "dtype"
        return Difference(
            name, status, 0.0, 0.0, "" if status == "same" else f"{left.dtype} here, {right.dtype} there"
        )
    relative = math.sqrt(squares / size) if size > 0 and squares >= 0 else math.inf
    return Difference(name, "changed", largest, math.nan if math.isnan(largest) else relative)


def _pairs(left: TensorRef, right: TensorRef, large: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The values of both in the same order, in double precision."""
    if left.numel == 0:
        return
    if not large:
        yield _double(whole(left)), _double(whole(right))
        return
    step = (1 << 20) // max(left.item_size, right.item_size)
    for at in range(0, left.numel, step):
        end = min(at + step, left.numel)
        a = next(pieces(left, at, end)).values.clone()  # the next read uses the same buffer
        yield _double(a), _double(next(pieces(right, at, end)).values)


def _double(values: torch.Tensor) -> torch.Tensor:
    import torch

    return comparable(values).to(torch.float64).reshape(-1)
