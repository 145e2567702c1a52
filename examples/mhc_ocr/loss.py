"""CTC over the columns of the plate, and the metric: the share of characters read right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from data import BLANK
from torch import Tensor, nn


class PlateLoss(nn.Module):
    """CTC in float32 (it has no half kernel on the CPU)."""

    def forward(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        log_probs = F.log_softmax(logits.float(), dim=-1).transpose(0, 1)
        columns, batch = log_probs.shape[:2]
        input_lengths = torch.full((batch,), columns, dtype=torch.long)
        target_lengths = torch.full((batch,), targets.shape[1], dtype=torch.long)
        return {"ctc": F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=BLANK)}


def greedy_decode(logits: Tensor) -> list[list[int]]:
    """The best class of each column, repeats merged, blanks dropped."""
    decoded = []
    for row in logits.argmax(dim=-1).tolist():
        merged = [
            current for current, previous in zip(row, [BLANK, *row], strict=False) if current != previous
        ]
        decoded.append([character for character in merged if character != BLANK])
    return decoded


def edit_distance(a: list[int], b: list[int]) -> int:
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def character_accuracy(logits: Tensor, targets: Tensor) -> float:
    """1 - edit distance / length, at least 0; NaN logits read as nothing."""
    if not torch.isfinite(logits).all():
        return 0.0
    wrong = sum(
        edit_distance(read, true) for read, true in zip(greedy_decode(logits), targets.tolist(), strict=True)
    )
    return max(0.0, 1 - wrong / targets.numel())
