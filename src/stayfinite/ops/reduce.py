"""Masked mean and softmax: what is masked cannot leak, not even as NaN, and an empty selection gives 0."""

import torch
from torch import Tensor

from stayfinite.ops.mask import keep_mask
from stayfinite.ops.precision import widen


def masked_mean(
    x: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False
) -> Tensor:
    """The mean of x where ``mask`` is True; 0 with zero gradient where nothing is selected.

    Summed in at least float32, returned in the dtype of x.

    >>> masked_mean(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    keep = keep_mask(mask)
    # where, not multiplication: 0 * NaN is NaN, in the value and in the gradient.
    kept = torch.where(keep, widen(x), 0.0)
    dims = tuple(range(kept.ndim)) if dim is None else dim
    total = kept.sum(dims, keepdim=keepdim)
    count = keep.expand_as(kept).sum(dims, keepdim=keepdim).clamp(min=1)
    return torch.div(total, count).to(x.dtype)


def _logits_for_softmax(logits: Tensor, mask: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Widened logits with -inf outside the mask and no row that is empty, and the positions that count."""
    values = widen(logits)
    keep = keep_mask(mask) & (values != -torch.inf)
    filled = torch.where(keep, values, -torch.inf)
    return torch.where(keep.any(dim, keepdim=True), filled, 0.0), keep


def masked_softmax(logits: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """softmax over the positions where ``mask`` is True; 0 elsewhere, and a row without any is all 0.

    A logit of -inf counts as masked, so an additive mask may have been applied before. Computed in at least
    float32, returned in the dtype of the logits.

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """
    filled, keep = _logits_for_softmax(logits, mask, dim)
    return torch.where(keep, filled.softmax(dim), 0.0).to(logits.dtype)


def masked_log_softmax(logits: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """log_softmax over the positions where ``mask`` is True; 0 elsewhere.

    The 0 of a masked position is not a log-probability (that would be -inf): it is a value that adds
    nothing to a sum and passes no gradient.

    >>> masked_log_softmax(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))
    tensor([[-0.6931, -0.6931],
            [ 0.0000,  0.0000]])
    """
    filled, keep = _logits_for_softmax(logits, mask, dim)
    return torch.where(keep, filled.log_softmax(dim), 0.0).to(logits.dtype)
