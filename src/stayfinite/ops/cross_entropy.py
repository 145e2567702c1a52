"""Cross entropy that is 0, not NaN, when every label of the batch is ignored."""

import torch
from torch import Tensor
from torch.nn import functional

from stayfinite.ops.precision import widen
from stayfinite.ops.reduce import masked_mean


def masked_cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Mean cross entropy over the labels that are not ``ignore_index``; 0 with zero gradient if none is left.

    The classes are the last dimension of ``logits``; ``labels`` has its shape without it. Ignored positions
    may hold NaN. Half inputs give a float32 loss.

    >>> masked_cross_entropy(torch.zeros(2, 4), torch.tensor([-100, -100]))
    tensor(0.)
    """
    if logits.ndim < 1 or labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels {tuple(labels.shape)} do not fit logits {tuple(logits.shape)}: "
            "the classes must be the last dimension of the logits"
        )
    keep = labels != ignore_index
    kept_logits = torch.where(keep.unsqueeze(-1), widen(logits), 0.0)
    kept_labels = torch.where(keep, labels, 0)
    losses = functional.cross_entropy(
        kept_logits.reshape(-1, logits.shape[-1]), kept_labels.reshape(-1), reduction="none"
    )
    return masked_mean(losses, keep.reshape(-1))
