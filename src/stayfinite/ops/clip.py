"""Gradient clipping that leaves non-finite gradients as they are and says so, without asking the device."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class ClipResult(NamedTuple):
    """What :func:`clip_grad_norm` saw and did: scalar tensors on the device, so only reading them waits."""

    norm: Tensor  # before clipping, in at least float32
    finite: Tensor  # bool: False means that no gradient was changed
    clipped: Tensor  # bool: the gradients were scaled down


@torch.no_grad()
def clip_grad_norm(
    parameters: Tensor | Iterable[Tensor], max_norm: float, error_if_nonfinite: bool = False
) -> ClipResult:
    """Scale the gradients in place so that their total 2-norm is at most ``max_norm``.

    For finite float32 gradients the result is bit for bit that of ``torch.nn.utils.clip_grad_norm_``. That
    one turns a single NaN into NaN everywhere and an Inf into zeros; here the gradients stay as they were
    when the norm is not finite, so that the culprit can still be read and the step can be refused. The
    norms of half gradients are taken in float32, so one beyond 65504 is an ordinary number.

    >>> weight = torch.zeros(2, requires_grad=True)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> result = clip_grad_norm([weight], max_norm=1.0)
    >>> result.norm, bool(result.clipped), weight.grad
    (tensor(5.), True, tensor([0.6000, 0.8000]))
    """
    if not max_norm >= 0:
        raise ValueError(f"max_norm must be 0 or positive, got {max_norm}")
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [p.grad for p in listed if p.grad is not None]
    if not grads:
        device = listed[0].device if listed else None
        no, yes = torch.tensor(False, device=device), torch.tensor(True, device=device)
        return ClipResult(torch.tensor(0.0, device=device), finite=yes, clipped=no)

    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for grad in grads:
        groups.setdefault((grad.device, grad.dtype), []).append(grad)

    norm = _total_norm(groups, grads[0].device)
    finite = norm.isfinite()
    if error_if_nonfinite and not bool(finite):
        raise RuntimeError(_describe_nonfinite(grads, norm))
    # The 1e-6 is torch's own and part of being identical to it. A coefficient of exactly 1 changes no bit.
    coefficient = torch.where(finite, (max_norm / (norm + 1e-6)).clamp(max=1.0), 1.0)
    for (device, _), members in groups.items():
        torch._foreach_mul_(members, coefficient.to(device))
    return ClipResult(norm, finite, clipped=coefficient < 1.0)


def _total_norm(groups: dict[tuple[torch.device, torch.dtype], list[Tensor]], device: torch.device) -> Tensor:
    norms: list[Tensor] = []
    for (_, dtype), members in groups.items():
        if torch.finfo(dtype).bits < 32:
            norms.extend(torch._foreach_norm(members, 2.0, dtype=torch.float32))
        else:
            norms.extend(torch._foreach_norm(members, 2.0))
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), 2.0)
    return total


def _describe_nonfinite(grads: list[Tensor], norm: Tensor) -> str:
    for index, grad in enumerate(grads):
        if not bool(grad.isfinite().all()):
            bad = int((~grad.isfinite()).sum())
            where = f"gradient {index} of {len(grads)}, shape {tuple(grad.shape)}, holds {bad} NaN or Inf"
            return f"the gradient norm is {norm.item()} ({where}): no gradient was changed, skip this step"
    return (
        f"the gradient norm is {norm.item()} although every gradient is finite: the gradients are too large"
    )
