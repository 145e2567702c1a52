"""Tensors in numbers: the largest magnitude (for every op), a full account of a tensor (only at a birth)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from stayfinite.findings import Histogram

PLAIN_TENSORS = (
    (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if hasattr(torch.nn, "Buffer")
    else (torch.Tensor, torch.nn.Parameter)
)
_FEW_BITS = {
    dtype
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if (dtype := getattr(torch, name, None)) is not None
}
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
MAX_SAMPLES = 32
_BINS = 16
# No table is as large; NaN and Inf that are cast become the smallest or largest number of the dtype.
_NO_INDEX = {torch.int64: 2**52, torch.int32: 2**30}
_item = torch.Tensor.item  # as it is now: `stayfinite run` replaces it for the script
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # vmap, grad: no values of their own


def is_plain(tensor: torch.Tensor) -> bool:
    """A tensor with real memory behind it: no subclass with its own rules, not meta, sparse or nested."""
    return (
        type(tensor) in PLAIN_TENSORS
        and tensor.device.type != "meta"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not _is_wrapped(tensor)
    )


def measurable(tensor: torch.Tensor) -> bool:
    """Whether NaN and Inf can be looked for in it."""
    return (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and is_plain(tensor)


def arrived(tensor: torch.Tensor) -> torch.Tensor:
    """What ranks exchange may still be under way: the plain tensor, once it is there. Any other is as it is."""
    if type(tensor).__name__ != "AsyncCollectiveTensor":
        return tensor
    under_way: Any = tensor
    plain: torch.Tensor = under_way.wait()
    return plain


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that a sparse tensor holds, as a plain one on the same memory. Any other is as it is."""
    if type(tensor) not in PLAIN_TENSORS or tensor.layout is torch.strided:
        return tensor
    if tensor.layout is torch.sparse_coo:
        return tensor.detach()._values()
    return tensor.detach().values() if tensor.layout in _COMPRESSED else tensor


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape; () for a nested tensor, which has several."""
    return () if tensor.is_nested else tuple(tensor.shape)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.dtype in _FEW_BITS else tensor


def magnitude(tensor: torch.Tensor) -> float:
    """The largest absolute value; NaN when any element is NaN, Inf when any is infinite."""
    if tensor.numel() == 0:
        return 0.0
    low, high = torch.aminmax(_real(tensor.detach()))
    smallest = float(_item(low))
    return smallest if math.isnan(smallest) else max(abs(smallest), abs(float(_item(high))))


def least(tensor: torch.Tensor) -> float | None:
    """The smallest value; None where there is none."""
    return float(_item(_real(tensor.detach()).min())) if tensor.numel() else None


def is_bad(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds a NaN or Inf."""
    return measurable(tensor) and not math.isfinite(magnitude(tensor))


def holds_casts_of_bad(tensor: torch.Tensor) -> bool:
    """Whether whole numbers are what a NaN or Inf becomes when it is cast, which no index is."""
    beyond = _NO_INDEX.get(tensor.dtype)
    if beyond is None or not is_plain(tensor) or not tensor.numel():
        return False
    low, high = (int(_item(end)) for end in torch.aminmax(tensor))
    return low < -beyond or high > beyond


@dataclass(frozen=True, slots=True)
class Account:
    """Everything about a tensor that a rule may ask for."""

    shape: tuple[int, ...]
    dtype: str
    min: float | None
    max: float | None
    absmax: float | None
    smallest_positive: float | None
    zeros: int
    negatives: int
    nan: int
    posinf: int
    neginf: int
    histogram: Histogram | None = None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def account(tensor: torch.Tensor) -> Account:
    """Count and measure; several passes, so only where a bad value was born."""
    name, shape = dtype_name(tensor.dtype), shape_of(tensor)
    if not is_plain(tensor) or tensor.numel() == 0:
        return Account(shape, name, None, None, None, None, 0, 0, 0, 0, 0)
    values = tensor.detach()
    values = _real(values) if values.dtype.is_floating_point or values.dtype.is_complex else values
    wide = values.double() if values.dtype.is_floating_point else values.to(torch.float64)
    nan = int(torch.isnan(wide).sum())
    posinf, neginf = int((wide == math.inf).sum()), int((wide == -math.inf).sum())
    finite = wide[torch.isfinite(wide)] if nan or posinf or neginf else wide.reshape(-1)
    low = high = smallest = None
    if finite.numel():
        low, high = float(finite.min()), float(finite.max())
        positive = finite[finite > 0]
        smallest = float(positive.min()) if positive.numel() else None
    return Account(
        shape=shape,
        dtype=name,
        min=low,
        max=high,
        absmax=None if low is None or high is None else max(abs(low), abs(high)),
        smallest_positive=smallest,
        zeros=int((finite == 0).sum()),
        negatives=int((finite < 0).sum()),
        nan=nan,
        posinf=posinf,
        neginf=neginf,
        histogram=histogram(finite),
    )


def histogram(finite: torch.Tensor) -> Histogram | None:
    """Counts of finite values by magnitude, at most `_BINS` bins a side; None for one value, or zeros alone."""
    sides = [-finite[finite < 0], finite[finite > 0]]
    if finite.numel() < 2 or not any(side.numel() for side in sides):
        return None
    exponents = [torch.log10(side.double()) for side in sides]
    ends = [(float(part.min()), float(part.max())) for part in exponents if part.numel()]
    low, high = math.floor(min(a for a, _ in ends)), math.floor(max(b for _, b in ends)) + 1
    decades = high - low
    bins = decades * max(1, _BINS // decades) if decades <= _BINS else _BINS
    counts = [_counted((part - low) * (bins / decades), bins) for part in exponents]
    return Histogram(low, high, *counts)


def _counted(places: torch.Tensor, bins: int) -> tuple[int, ...]:
    """How many fall into each bin; by bincount, which deterministic mode allows (histc it does not)."""
    if not places.numel():
        return ()
    return tuple(torch.bincount(places.long().clamp(0, bins - 1), minlength=bins).tolist())


def first_bad_index(tensor: torch.Tensor) -> tuple[int, ...]:
    """The index of the first element that is not finite; () for a scalar or a finite tensor."""
    where = (~torch.isfinite(tensor)).nonzero()
    return tuple(int(i) for i in where[0]) if where.numel() else ()


def bad_samples(tensor: torch.Tensor, batch_size: int | None) -> tuple[int, ...]:
    """Which samples hold bad values, where the first dimension is the batch.

    A multiple of it says nothing: steps of each sample, two views of the batch, 8732 anchors of one image.
    """
    if not batch_size or tensor.dim() == 0 or tensor.shape[0] != batch_size or not tensor.numel():
        return ()
    rows = (~torch.isfinite(tensor)).reshape(batch_size, -1).any(1).nonzero().flatten()
    return tuple(int(row) for row in rows[:MAX_SAMPLES])
