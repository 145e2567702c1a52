"""Sinkhorn normalisation in the log domain: exp of a large logit never appears, so it cannot overflow."""

import torch
from torch import Tensor

from stayfinite.ops.precision import widen


def _log_normalized(logits: Tensor, dim: int) -> Tensor:
    """log_softmax that leaves a slice of only -inf as it is; there the plain one is NaN."""
    forbidden = (logits == -torch.inf).all(dim, keepdim=True)
    return torch.where(forbidden, -torch.inf, torch.where(forbidden, 0.0, logits).log_softmax(dim))


def log_sinkhorn(log_alpha: Tensor, iterations: int = 20) -> Tensor:
    """The logarithm of :func:`sinkhorn`, in at least float32."""
    if log_alpha.ndim < 2 or log_alpha.shape[-1] != log_alpha.shape[-2]:
        raise ValueError(f"a doubly stochastic matrix is square, got the shape {tuple(log_alpha.shape)}")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    logits = widen(log_alpha)
    for _ in range(iterations):
        logits = _log_normalized(_log_normalized(logits, -1), -2)
    return logits


def sinkhorn(log_alpha: Tensor, iterations: int = 20) -> Tensor:
    """exp(log_alpha) with rows and columns of the last two dimensions normalised in turn: doubly stochastic.

    The columns sum to 1 exactly, the rows up to what the iterations leave. Computed and returned in at
    least float32, because rounding to half would spoil the sums. An entry of -inf stays 0; a row or column
    of only -inf stays 0 as a whole.

    >>> sinkhorn(torch.tensor([[1000.0, 0.0], [0.0, 1000.0]]))
    tensor([[1., 0.],
            [0., 1.]])
    """
    return log_sinkhorn(log_alpha, iterations).exp()
