"""Are these tensors finite? One fused pass; which ones are not and how badly only when it says no."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from stayfinite.findings import TensorSummary
from stayfinite.shards import local
from stayfinite.watch.outside_autocast import outside_autocast

_NARROW = {
    dtype
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if (dtype := getattr(torch, name, None)) is not None
}


def _checkable(tensor: Tensor) -> Tensor | None:
    """The part of a tensor that can be non-finite, in a form the fused pass takes."""
    value = local(tensor.detach())
    if not (value.is_floating_point() or value.is_complex()) or value.numel() == 0 or value.is_meta:
        return None
    if value.layout is torch.sparse_coo:
        value = value._values()
    elif value.layout is not torch.strided or value.is_nested:
        value = value.values()
    if value.is_complex():  # its parts, because the magnitude of a finite complex number may overflow
        return torch.view_as_real(value.resolve_conj())
    return value.float() if value.dtype in _NARROW else value


@torch.no_grad()
def peak(tensors: Iterable[Tensor]) -> Tensor | None:
    """The largest magnitude of all, on the device: NaN or Inf if any of them holds one. None for no tensors."""
    values = [value for tensor in tensors if (value := _checkable(tensor)) is not None and value.numel() > 0]
    if not values:
        return None
    norms = torch._foreach_norm(values, float("inf"))
    device = norms[0].device
    dtype = torch.float64 if any(n.dtype is torch.float64 for n in norms) else torch.float32
    return torch.stack([norm.to(device=device, dtype=dtype) for norm in norms]).max()


def peaks(*parts: Sequence[Tensor]) -> list[float]:
    """The largest magnitude in each part, 0 where there is nothing. One transfer to the host."""
    found = [peak(part) for part in parts]
    known = [largest for largest in found if largest is not None]
    if not known:
        return [0.0 for _ in parts]
    dtype = torch.float64 if any(largest.dtype is torch.float64 for largest in known) else torch.float32
    values = iter(torch.stack([largest.to(known[0].device, dtype) for largest in known]).tolist())
    return [0.0 if largest is None else next(values) for largest in found]


_SAMPLED = 4096


@torch.no_grad()
@outside_autocast
def sampled_peak(batches: object) -> Tensor | None:
    """The largest magnitude in a sample of a batch's first floating-point tensor, on its device; None without one."""
    for _, tensor in tensors_in(batches):
        if not tensor.is_floating_point() or tensor.layout is not torch.strided or not tensor.numel():
            continue
        if tensor.is_meta or tensor.is_nested or tensor.dtype in _NARROW or not tensor.is_contiguous():
            continue
        sample = tensor.view(-1)[:: max(1, tensor.numel() // _SAMPLED)]
        largest: Tensor = torch.linalg.vector_norm(sample, float("inf"))
        return largest
    return None


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """True if no tensor holds NaN or Inf. One transfer to the host."""
    largest = peak(tensors)
    return largest is None or bool(torch.isfinite(largest))


def nonfinite(named: Iterable[tuple[str, Tensor]]) -> list[TensorSummary]:
    """The tensors that hold NaN or Inf, in a few numbers each."""
    named = list(named)
    if all_finite([tensor for _, tensor in named]):
        return []
    return [summarize(name, tensor) for name, tensor in named if not all_finite([tensor])]


@torch.no_grad()
def summarize(name: str, tensor: Tensor) -> TensorSummary:
    """Counts and finite range of one tensor. Not for the hot path."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.values().shape if tensor.is_nested else tensor.shape)
    value = _checkable(tensor)
    if value is None:
        value = local(tensor.detach())
        if value.numel() == 0 or value.is_meta or value.is_quantized:
            return TensorSummary(name, shape, dtype)
    nan = int(torch.isnan(value).sum())
    inf = int(torch.isinf(value).sum())
    good = value[torch.isfinite(value)]
    if good.dtype is torch.bool:
        good = good.to(torch.uint8)
    return TensorSummary(
        name=name,
        shape=shape,
        dtype=dtype,
        min=float(good.min()) if good.numel() else None,
        max=float(good.max()) if good.numel() else None,
        zeros=int((value == 0).sum()),
        nan=nan,
        inf=inf,
    )


def tensors_in(value: object, name: str = "batch") -> list[tuple[str, Tensor]]:
    """The tensors of a batch of any ordinary shape: tensor, list, tuple, mapping, dataclass, namedtuple."""
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, Mapping):
        return [found for key, item in value.items() for found in tensors_in(item, f"{name}[{key!r}]")]
    if isinstance(value, (list, tuple)):
        return [found for i, item in enumerate(value) for found in tensors_in(item, f"{name}[{i}]")]
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        return [found for f in fields for found in tensors_in(getattr(value, f, None), f"{name}.{f}")]
    return []
