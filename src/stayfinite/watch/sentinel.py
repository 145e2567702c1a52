"""The sentinel: one fused pass over the raw gradients, before clipping and shared with it. No transfer to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from stayfinite.shards import holders, is_sharded, is_spread_over, local, whole
from stayfinite.watch.finite import peak
from stayfinite.watch.outside_autocast import is_refused_by_autocast, outside_autocast


class Reading:
    """The gradients of one step and their norms, as tensors on the device."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        names: Mapping[Tensor, str],
        scale: Tensor | None = None,
    ) -> None:
        """`scale`: a loss scale that is still in the gradients; their norms are those without it."""
        self._parameters, self._names, self._scale = parameters, names, scale
        self.gradients = list(gradients)
        kinds = {(type(g), g.layout, g.dtype, g.device) for g in gradients}
        self._alike = len(kinds) == 1 and next(iter(kinds))[:2] == (Tensor, torch.strided)
        self.is_half = any(dtype in (torch.float16, torch.bfloat16) for _, _, dtype, _ in kinds)
        self._outside = any(is_refused_by_autocast(dtype, device) for _, _, dtype, device in kinds)
        self._norm_of_all: Tensor | None = None

    @property
    def names(self) -> list[str]:
        """Of the parameters, one for each gradient."""
        return [self._names.get(parameter, "?") for parameter in self._parameters]

    @property
    def as_torch_has_it(self) -> Tensor:
        """The norm of all gradients, as a DTensor where they are sharded: all ranks must ask, the first time."""
        if self._norm_of_all is None:
            self._norm_of_all = self._norm(None)
        return self._norm_of_all

    @property
    def total(self) -> Tensor:
        """The same as a plain number."""
        return whole(self.as_torch_has_it)

    def own_part(self, ranks: int) -> Tensor | None:
        """Of a model that is sharded over all ranks: this rank's part of the norm, without asking the others.

        None where it is not needed, because somebody has asked for the whole, or cannot be.
        """
        known = self._norm_of_all is not None or not self.gradients
        if known or not any(is_spread_over(gradient, ranks) for gradient in self.gradients):
            return None
        by_holders: dict[int, list[Tensor]] = {}
        for gradient in self.gradients:
            count = holders(gradient, ranks)
            if count is None:
                return None
            by_holders.setdefault(count, []).append(local(gradient))
        with torch.no_grad():
            norms = {count: self._norm_of(parts, None) for count, parts in by_holders.items()}
            if set(norms) == {1}:
                return self._without_scale(norms[1])
            # What several ranks hold counts once: each of them has its share of the square.
            return self._without_scale(_norm_of_norms([norm / count**0.5 for count, norm in norms.items()]))

    @torch.no_grad()
    def _norm(self, dtype: torch.dtype | None) -> Tensor:
        """The total norm, by the same operations in the same order as torch's clip_grad_norm_: same bits."""
        if not self.gradients:
            return torch.zeros(())
        by_kind = outside_autocast(self._norm_by_kind) if self._outside else self._norm_by_kind
        return self._without_scale(by_kind(dtype))

    def _without_scale(self, norm: Tensor) -> Tensor:
        return norm if self._scale is None else norm / self._scale.to(norm.device)

    def _norm_by_kind(self, dtype: torch.dtype | None) -> Tensor:
        if self._alike:
            return _norm_of_norms(torch._foreach_norm(self.gradients, 2.0, dtype))
        parts = _by_mesh(self.gradients)
        if len(parts) == 1:
            return self._norm_of(parts[0], dtype)
        # Sharded and plain gradients in one model: torch takes no norm of them together.
        norms = [whole(self._norm_of(part, dtype)) for part in parts]
        return _norm_of_norms([norm.to(norms[0].device) for norm in norms])

    @staticmethod
    def _norm_of(gradients: list[Tensor], dtype: torch.dtype | None) -> Tensor:
        dense = [g for g in gradients if g.layout is torch.strided]
        norms: list[Tensor] = []
        if dense:
            groups = _group_tensors_by_device_and_dtype([dense])  # type: ignore[list-item]
            for (tensors,), _ in groups.values():
                norms.extend(torch._foreach_norm(tensors, 2.0, dtype))  # type: ignore[arg-type]
        for gradient in gradients:
            if gradient.layout is not torch.strided:
                norms.append(torch.linalg.vector_norm(_values(gradient), 2.0, dtype=dtype))
        device = gradients[0].device
        return _norm_of_norms([norm.to(device) for norm in norms])

    def norm_in_float32(self) -> Tensor:
        """For half gradients: their norm may exceed 65504 although each of them is finite."""
        return whole(self._norm(torch.float32))

    @torch.no_grad()
    def clip(self, max_norm: float, total: Tensor | None = None) -> None:
        """Scale the gradients to at most `max_norm`, exactly as torch's clip_grad_norm_ does."""
        if not self.gradients:
            return
        norm = self.total if total is None else total
        coefficient = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        if self._alike:
            torch._foreach_mul_(self.gradients, coefficient.to(self.gradients[0].device))
            return
        dense = [local(g) for g in self.gradients if g.layout is torch.strided]
        if dense:
            groups = _group_tensors_by_device_and_dtype([dense])  # type: ignore[list-item]
            for (device, _), ((tensors,), _) in groups.items():
                torch._foreach_mul_(tensors, coefficient.to(device))  # type: ignore[arg-type]
        for gradient in self.gradients:
            if gradient.layout is not torch.strided:
                gradient.mul_(coefficient.to(gradient.device))

    def culprits(self) -> list[str]:
        """The parameters whose gradient holds NaN or Inf. Only asked after the norm was not finite."""
        return [n for n, g in zip(self.names, self.gradients, strict=True) if not _is_finite(g)]

    def largest(self) -> tuple[str, float] | None:
        """The parameter with the largest gradient. Only asked after a norm of finite gradients was not finite."""
        sizes = [(n, peak([g])) for n, g in zip(self.names, self.gradients, strict=True)]
        return max(
            ((n, float(size)) for n, size in sizes if size is not None), key=lambda s: s[1], default=None
        )


def read(parameters: Sequence[Tensor], names: Mapping[Tensor, str], scale: Tensor | None = None) -> Reading:
    """One pass over the gradients that exist; parameters without one (frozen, unused) do not count."""
    gradients = [p.grad for p in parameters]
    found = [g for g in gradients if g is not None]
    if len(found) < len(parameters):
        parameters = [p for p, g in zip(parameters, gradients, strict=True) if g is not None]
    return Reading(parameters, found, names, scale)


def _norm_of_norms(norms: Sequence[Tensor]) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)), 2.0)
    return total


def _values(gradient: Tensor) -> Tensor:
    """The stored numbers of a sparse gradient, equal indices added up."""
    return gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient.values()


def _is_finite(gradient: Tensor) -> bool:
    values = local(gradient) if gradient.layout is torch.strided else _values(gradient)
    return bool(torch.isfinite(values).all())


def _by_mesh(gradients: list[Tensor]) -> list[list[Tensor]]:
    """Plain gradients, and sharded ones by the ranks that share them."""
    parts: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        mesh = gradient.device_mesh if is_sharded(gradient) else None  # type: ignore[attr-defined]
        parts.setdefault(mesh, []).append(gradient)
    return list(parts.values())
