"""Vector norms and normalisation that neither overflow nor underflow in the square, and RMSNorm likewise.

Each divides by the largest magnitude first. That scale cancels out of the result, so it is detached: the
gradient is exact without it.
"""

import torch
from torch import Tensor

from stayfinite.ops.eps import tiny
from stayfinite.ops.precision import widen

Dim = int | tuple[int, ...] | None


def _reduced_dims(x: Tensor, dim: Dim) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(x.ndim))
    return (dim,) if isinstance(dim, int) else dim


def _largest_magnitude(x: Tensor, dims: tuple[int, ...], at_least: float) -> Tensor:
    """The detached scale, reduced dimensions kept. It is 1 where x holds NaN or Inf, to pass those on."""
    if x.numel() == 0:
        return x.new_ones(())
    largest = x.detach().abs().amax(dims, keepdim=True)
    return torch.where(largest.isfinite(), largest.clamp(min=at_least), 1.0)


def safe_norm(x: Tensor, dim: Dim = None, keepdim: bool = False, eps: float = 0.0) -> Tensor:
    """The Euclidean norm over ``dim`` (all by default), or sqrt(norm**2 + eps**2) with a positive ``eps``.

    At a zero vector the gradient is zero. Half inputs give a float32 norm: that of a half vector can be
    larger than 65504.

    >>> safe_norm(torch.tensor([3e30, 4e30]))
    tensor(5.0000e+30)
    """
    if not eps >= 0:
        raise ValueError(f"eps must be 0 or positive, got {eps}")
    dims = _reduced_dims(x, dim)
    wide = widen(x)
    scale = _largest_magnitude(wide, dims, at_least=max(eps, tiny(wide)))
    squares = (wide / scale).square().sum(dims, keepdim=True) + (eps / scale).square()
    zero = squares == 0
    norm = torch.where(zero, 0.0, scale * torch.where(zero, 1.0, squares).sqrt())
    return norm if keepdim or not dims else norm.squeeze(dims)


def normalize(x: Tensor, dim: int | tuple[int, ...] = -1, eps: float | None = None) -> Tensor:
    """x / norm(x) over ``dim``, in the dtype of x.

    A vector shorter than ``eps`` has no direction: it becomes 0 and gets zero gradient. Every other gradient
    is at most 1 / norm. ``eps`` is ``tiny(x)`` by default; raise it when vectors that short are noise.

    >>> normalize(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    shortest = tiny(x) if eps is None else eps
    if not shortest >= 0:
        raise ValueError(f"eps must be 0 or positive, got {eps}")
    dims = _reduced_dims(x, dim)
    wide = widen(x)
    scale = _largest_magnitude(wide, dims, at_least=tiny(wide))
    scaled = wide / scale
    squares = scaled.square().sum(dims, keepdim=True)
    with torch.no_grad():
        # eps is divided rather than the norm multiplied: the norm of a huge vector may overflow.
        short = (squares == 0) | (squares.sqrt() < shortest / scale)
    unit = scaled / torch.where(short, 1.0, squares).sqrt()
    return torch.where(short, 0.0, unit).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x**2) + eps) over the last dimension, times ``weight``.

    Computed in at least float32, returned in the dtype of x. The square of a large x does not overflow. The
    gradient is at most 1 / sqrt(eps): an eps of 1e-20 is accepted and means 1e10.

    >>> rms_norm(torch.tensor([3e30, 3e30]))
    tensor([1., 1.])
    """
    wide = widen(x)
    if not eps >= tiny(wide):
        raise ValueError(
            f"eps {eps} does not exist in {wide.dtype}: use at least {tiny(wide):.2g}, such as 1e-6"
        )
    # Numbers up to 1 need no scaling: their squares cannot overflow, and what underflows is far below eps.
    scale = _largest_magnitude(wide, (-1,), at_least=1.0)
    scaled = wide / scale
    out = scaled * torch.rsqrt(scaled.square().mean(-1, keepdim=True) + eps / scale / scale)
    if weight is not None:
        out = out * weight.to(out.dtype)
    return out.to(x.dtype)
