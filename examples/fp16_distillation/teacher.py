"""Where the teacher comes from: a checkpoint, or a short float32 training that is kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from loss import load_balance
from model import LanguageModel
from torch import Tensor


def build_teacher(settings: dict[str, Any], vocab_size: int, length: int) -> LanguageModel:
    return LanguageModel(
        vocab_size,
        settings["dim"],
        settings["layers"],
        settings["heads"],
        length,
        settings["experts"],
        settings["top_k"],
    )


def load_teacher(settings: dict[str, Any], ids: Tensor, vocab_size: int, cache: Path) -> LanguageModel:
    """`settings['checkpoint']` if given, else a teacher trained on `ids`, the first time or from the cache."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        teacher = build_teacher(settings, vocab_size, ids.shape[1])
        key = f"{json.dumps(settings, sort_keys=True)} {vocab_size} {ids.shape} {int(ids.sum())}"
        path = cache / f"teacher-{hashlib.sha256(key.encode()).hexdigest()[:12]}.pt"
        if settings.get("checkpoint"):
            path = Path(settings["checkpoint"])
        if not path.exists():
            pretrain(teacher, ids, settings["pretrain_steps"])
            cache.mkdir(parents=True, exist_ok=True)
            mine = path.with_suffix(f".{os.getpid()}")  # renamed when it is whole: another run may be reading
            torch.save(teacher.state_dict(), mine)
            mine.replace(path)
        teacher.load_state_dict(torch.load(path, weights_only=True))
    return teacher


def pretrain(teacher: LanguageModel, ids: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = ids[torch.randint(len(ids), (16,))]
        output = teacher(batch[:, :-1])
        targets = batch[:, 1:]
        keep = targets != 0  # id 0 is padding here
        loss = F.cross_entropy(output.logits[keep], targets[keep]) + 0.01 * load_balance(output.routers)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
