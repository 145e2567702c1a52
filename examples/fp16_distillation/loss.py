"""The terms of the distillation loss: knowledge distillation, cross entropy, anchor and two router terms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from data import IGNORED, Batch
from model import Distillation, Output
from torch import Tensor, nn


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def logit_distillation(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """T^2 KL between the softened distributions; student and teacher share a tokenizer."""
    keep = labels != IGNORED
    log_student = F.log_softmax(student[keep] / temperature, dim=-1)
    probabilities = F.softmax(teacher[keep] / temperature, dim=-1)
    return F.kl_div(log_student, probabilities, reduction="batchmean") * temperature**2


def hidden_distillation(projected: Tensor, teacher: Tensor, aligned: Tensor) -> Tensor:
    """Mean squared error of the hidden states where both tokenizers have read the same characters."""
    row, place = torch.nonzero(aligned >= 0, as_tuple=True)
    if len(row) == 0:
        return projected.new_zeros(())
    return F.mse_loss(projected[row, place], teacher[row, aligned[row, place]])


def anchor(gates: list[nn.Linear], start: list[Tensor]) -> Tensor:
    """How far the router has moved from the pretrained one."""
    terms = [F.mse_loss(gate.weight, old) for gate, old in zip(gates, start, strict=True)]
    return torch.stack(terms).mean()


def load_balance(routers: list[Tensor]) -> Tensor:
    """Share of tokens times mean probability per expert, as in the Switch transformer; 1 is even."""
    terms = []
    for router in routers:
        probabilities = torch.softmax(router, dim=-1).flatten(0, -2)
        experts = probabilities.shape[-1]
        share = F.one_hot(probabilities.argmax(dim=-1), experts).to(probabilities.dtype).mean(dim=0)
        terms.append(experts * (share * probabilities.mean(dim=0)).sum())
    return torch.stack(terms).mean()


def router_entropy(routers: list[Tensor]) -> Tensor:
    terms = []
    for router in routers:
        probabilities = torch.softmax(router, dim=-1)
        terms.append(-(probabilities * (probabilities + 1e-8).log()).sum(dim=-1).mean())
    return torch.stack(terms).mean()


class DistillationLoss(nn.Module):
    """L = a_kd KD + a_ce CE + anchor + load balance + router entropy, each with its weight."""

    def __init__(
        self, model: Distillation, weights: dict[str, float], temperature: float, shared: bool
    ) -> None:
        super().__init__()
        self.weights = weights
        self.temperature = temperature
        self.shared = shared
        for index, gate in enumerate(model.teacher.gates()):
            self.register_buffer(f"gate_{index}", gate.weight.detach().clone())

    def distillation(self, model: Distillation, student: Output, teacher: Output, batch: Batch) -> Tensor:
        if self.shared:
            return logit_distillation(student.logits, teacher.logits, batch["labels"], self.temperature)
        return hidden_distillation(model.projector(student.hidden), teacher.hidden, batch["aligned"])

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels)

    def router_entropy(self, routers: list[Tensor]) -> Tensor:
        return router_entropy(routers)

    def forward(self, model: Distillation, batch: Batch) -> dict[str, Tensor]:
        student = model.student(batch["student_ids"])
        teacher = model.teacher(batch["teacher_ids"])
        terms = {
            "kd": self.distillation(model, student, teacher, batch),
            "ce": self.cross_entropy(student.logits, batch["labels"]),
            "anchor": anchor(model.teacher.gates(), list(self.buffers())),
            "load_balance": load_balance(teacher.routers),
            "router_entropy": self.router_entropy(teacher.routers),
        }
        return {name: self.weights[name] * term for name, term in terms.items()}


class StableDistillationLoss(DistillationLoss):
    """The same terms in float32: log space, counts that may be zero, and an alignment that may not be empty."""

    def distillation(self, model: Distillation, student: Output, teacher: Output, batch: Batch) -> Tensor:
        # Imported here, because only this form needs it: everything above is torch alone.
        from stayfinite.ops import kd_loss, masked_mean

        keep = batch["labels"] != IGNORED
        if self.shared:
            return kd_loss(student.logits, teacher.logits, self.temperature, keep)
        aligned = batch["aligned"]
        both = keep & (aligned >= 0)
        if bool(keep.any()) and not bool(both.any()):
            raise ValueError("No token of the two tokenizers is aligned: distillation would be silently 0.")
        index = aligned.clamp(min=0).unsqueeze(-1).expand(-1, -1, teacher.hidden.shape[-1])
        gap = model.projector(student.hidden).float() - teacher.hidden.float().gather(1, index)
        return masked_mean(gap.square().mean(dim=-1), both)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        from stayfinite.ops import masked_cross_entropy

        return masked_cross_entropy(logits, labels, IGNORED)

    def router_entropy(self, routers: list[Tensor]) -> Tensor:
        logs = [torch.log_softmax(router.float(), dim=-1) for router in routers]
        return torch.stack([-(log.exp() * log).sum(dim=-1).mean() for log in logs]).mean()
