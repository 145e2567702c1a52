"""A small training with dropout, shuffling, momentum, a schedule and an average: all of it must survive a resume.

`python resumable_training.py FOLDER STEPS [CHECKPOINT]` trains, from the checkpoint if one is given, saves the
whole guard to FOLDER/end.pt and every weight and random number to FOLDER/end.bin.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stayfinite import Guard


def train(folder: Path, last_step: int, checkpoint: Path | None, workers: int = 0) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)
    average = torch.optim.swa_utils.AveragedModel(model)
    x = torch.randn(52, 6, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(
        TensorDataset(x, x.argmax(1) % 3), 4, shuffle=True, num_workers=workers, generator=generator
    )
    guard = Guard(model, optimizer, scheduler, ema=average, clip_norm=1.0, run_dir=folder, quiet=True)
    if checkpoint is not None:
        torch.rand(5)  # a new process has drawn other random numbers before it restores
        guard.restore(checkpoint)
    while guard.step_count < last_step:
        for inputs, labels in guard.watch(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs + 0.1 * torch.randn_like(inputs)), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
            if guard.step_count == last_step:
                break
    guard.save(folder / "end.pt")
    numbers = [t.detach().double().flatten() for _, _, t in guard.state.tensors()] + [torch.rand(4).double()]
    (folder / "end.bin").write_bytes(torch.cat(numbers).numpy().tobytes())
    guard.close()


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
