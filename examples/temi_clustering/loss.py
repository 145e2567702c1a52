"""Weighted mutual information between a student's and a teacher's cluster assignment, head by head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    heads: int
    clusters: int
    beta: float
    student_temperature: float
    teacher_temperature: tuple[float, float]  # from, to
    temperature_epochs: int
    marginal_momentum: float

    def teacher_temperature_at(self, epoch: int) -> float:
        """Linear over the first epochs, then constant."""
        start, end = self.teacher_temperature
        return start + (end - start) * min(1.0, epoch / self.temperature_epochs)


def beta_mi(student: Tensor, teacher: Tensor, marginal: Tensor, beta: float) -> Tensor:
    """-log sum_k (p_s p_t)^beta / p_k for each sample."""
    return -torch.log(torch.sum((student * teacher) ** beta / marginal, dim=-1))


def mean_agreement(teacher: Tensor) -> Tensor:
    """How much each head agrees with the other heads, on average over heads and samples."""
    agreement = torch.einsum("hbk,gbk->hg", teacher, teacher) / teacher.shape[1]
    agreement.fill_diagonal_(0.0)
    return agreement.sum(dim=1) / max(1, len(agreement) - 1)


class TemiLoss(nn.Module):
    """One weighted loss per head. The cluster marginal p_k is a running mean of the teacher's assignments."""

    marginal: Tensor

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        uniform = torch.full((settings.heads, settings.clusters), 1.0 / settings.clusters)
        self.register_buffer("marginal", uniform)

    def forward(self, student_logits: Tensor, teacher_logits: Tensor, epoch: int) -> Tensor:
        settings = self.settings
        student = torch.softmax(student_logits / settings.student_temperature, dim=-1)
        with torch.no_grad():
            teacher = torch.softmax(teacher_logits / settings.teacher_temperature_at(epoch), dim=-1)
            momentum = settings.marginal_momentum
            self.marginal.mul_(momentum).add_(teacher.mean(dim=1), alpha=1 - momentum)
            weights = mean_agreement(teacher)
            weights = weights / weights.sum()

        losses = []
        for head, weight in enumerate(weights):
            per_sample = beta_mi(student[head], teacher[head], self.marginal[head], settings.beta)
            losses.append(weight * per_sample.mean())
        return torch.stack(losses)


class LogSpaceTemiLoss(nn.Module):
    """The same loss from log-probabilities: nothing underflows, so nothing has an infinite slope at zero."""

    log_marginal: Tensor

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        uniform = torch.full((settings.heads, settings.clusters), -math.log(settings.clusters))
        self.register_buffer("log_marginal", uniform)

    def forward(self, student_logits: Tensor, teacher_logits: Tensor, epoch: int) -> Tensor:
        # Imported here, because only this form needs it: everything above is torch alone.
        from stayfinite.ops import beta_mutual_information, normalize_weights

        settings = self.settings
        log_student = torch.log_softmax(student_logits / settings.student_temperature, dim=-1)
        with torch.no_grad():
            log_teacher = torch.log_softmax(teacher_logits / settings.teacher_temperature_at(epoch), dim=-1)
            self.update_marginal(log_teacher)
            weights = normalize_weights(mean_agreement(log_teacher.exp()))

        losses = []
        for head, weight in enumerate(weights):
            per_sample = beta_mutual_information(
                log_student[head], log_teacher[head], self.log_marginal[head], settings.beta
            )
            losses.append(weight * per_sample.mean())
        return torch.stack(losses)

    def update_marginal(self, log_teacher: Tensor) -> None:
        """The running mean in log space: a cluster that nobody chose for long stays above zero."""
        momentum = self.settings.marginal_momentum
        log_batch_mean = torch.logsumexp(log_teacher, dim=1) - math.log(log_teacher.shape[1])
        old = self.log_marginal + math.log(momentum)
        self.log_marginal.copy_(torch.logaddexp(old, log_batch_mean + math.log1p(-momentum)))
