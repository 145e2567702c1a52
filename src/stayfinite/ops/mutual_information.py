"""The clustering loss -log sum_k (p_s p_t)^beta / p_k in log space, where confidence does not underflow."""

import torch
from torch import Tensor

from stayfinite.ops.precision import widen


def beta_mutual_information(
    log_student: Tensor, log_teacher: Tensor, log_marginal: Tensor, beta: float, dim: int = -1
) -> Tensor:
    """-log sum_k (p_s p_t)^beta / p_k, one value a sample, from log-probabilities.

    The classes are in ``dim``. Pass the output of log_softmax: the logarithm of a softmax that has
    underflowed to 0 has lost what this form keeps, and gives inf where no class is left. A class whose
    marginal is exactly 0 (log -inf) is left out. Half inputs give a float32 result.

    >>> student = torch.tensor([[200.0, 0.0]]).log_softmax(-1)
    >>> teacher = torch.tensor([[0.0, 200.0]]).log_softmax(-1)
    >>> beta_mutual_information(student, teacher, torch.tensor([0.5, 0.5]).log(), beta=0.5)
    tensor([98.6137])
    """
    if not beta > 0:
        raise ValueError(f"beta must be positive, got {beta}")
    marginal = widen(log_marginal)
    unused = marginal == -torch.inf
    joint = beta * (widen(log_student) + widen(log_teacher))
    terms = torch.where(unused, -torch.inf, joint - torch.where(unused, 0.0, marginal))
    return -torch.logsumexp(terms, dim)
