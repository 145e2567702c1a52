"""The knowledge distillation loss: T^2 KL(teacher || student) in log space and float32."""

import math
from typing import Literal

import torch
from torch import Tensor

from stayfinite.ops.mask import keep_mask
from stayfinite.ops.precision import widen
from stayfinite.ops.reduce import masked_mean

Reduction = Literal["mean", "sum", "none"]


def kd_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)) over the classes in the last dimension.

    ``mask`` has the shape of the logits without that dimension; True keeps a position. "mean" is over the
    kept positions and is 0 with zero gradient when there are none. A class to which the teacher gives 0
    counts nothing. The gradient flows to the teacher too, since its router may be trained; detach it if
    not. Half inputs give a float32 loss.

    >>> logits = torch.tensor([[1.0, 2.0]])
    >>> kd_loss(logits, logits, temperature=2.0)
    tensor(0.)
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"student logits {tuple(student_logits.shape)} and teacher logits {tuple(teacher_logits.shape)} "
            "must have the same shape: two tokenizers need an alignment first"
        )
    positions = student_logits.shape[:-1]
    keep = student_logits.new_ones(positions, dtype=torch.bool) if mask is None else keep_mask(mask)
    if keep.shape != positions:
        raise ValueError(
            f"the mask has the shape {tuple(keep.shape)}, the logits have {tuple(positions)} positions"
        )

    # Masked logits are replaced before the softmax: a NaN there would come back as 0 * NaN in the gradient.
    def log_probabilities(logits: Tensor) -> Tensor:
        kept = widen(logits) if mask is None else torch.where(keep.unsqueeze(-1), widen(logits), 0.0)
        return (kept / temperature).log_softmax(-1)

    log_student = log_probabilities(student_logits)
    log_teacher = log_probabilities(teacher_logits)
    probability = log_teacher.exp()
    excluded = probability == 0
    # Both logarithms are replaced where the teacher says 0: no -inf enters the product or its gradient.
    gap = torch.where(excluded, 0.0, log_teacher) - torch.where(excluded, 0.0, log_student)
    divergence = temperature**2 * (probability * gap).sum(-1)
    if reduction == "mean":
        return masked_mean(divergence, keep)
    divergence = torch.where(keep, divergence, 0.0)
    return divergence.sum() if reduction == "sum" else divergence
