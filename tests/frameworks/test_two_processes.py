"""Two processes inside a Trainer: the same bits as without a guard, one decision, the right rank and line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

SCRIPT = """
import hashlib, os, sys, torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed
set_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, labels):
        logits = self.b(torch.tanh(self.a(x)))
        weight = x.abs().sum(-1)
        loss = (nn.functional.cross_entropy(logits, labels, reduction="none") * weight / weight).mean()
        return {"loss": loss, "logits": logits}

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
        self.y = self.x[:, :3].argmax(1)
        if "bad" in sys.argv:
            self.x[45] = 0

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]}

made = TrainingArguments("out", per_device_train_batch_size=8, max_steps=4, save_strategy="no", use_cpu=True,
                         report_to=[], disable_tqdm=True, learning_rate=1e-2)
callbacks = []
if "callback" in sys.argv:
    from stayfinite.integrations.transformers import StayFiniteCallback
    callbacks = [StayFiniteCallback(run_dir="runs/a")]
trainer = Trainer(Net(), made, train_dataset=Samples(), callbacks=callbacks)
trainer.train()
bits = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
with open(f"weights.{os.environ['RANK']}", "w") as file:
    print(hashlib.sha256(bits).hexdigest(), trainer.state.global_step, file=file)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
RUN = ("-m", "stayfinite", "run", "--nproc-per-node", "2", "--run-dir", "runs/a")


def trained(folder: Path, launcher: tuple[str, ...], *arguments: str) -> set[str]:
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *launcher, "train.py", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {(folder / f"weights.{rank}").read_text() for rank in (0, 1)}


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return trained(tmp_path_factory.mktemp("plain"), TORCHRUN)


@pytest.mark.parametrize("launcher, how", [(TORCHRUN, ["callback"]), (RUN, [])], ids=["callback", "run"])
def test_a_healthy_training_has_the_same_bits(
    tmp_path: Path, unguarded: set[str], launcher: tuple[str, ...], how: list[str]
) -> None:
    assert len(unguarded) == 1 and trained(tmp_path, launcher, *how) == unguarded


@pytest.mark.parametrize("launcher, how", [(TORCHRUN, ["callback"]), (RUN, [])], ids=["callback", "run"])
def test_a_bad_sample_of_one_process_is_refused_by_both_and_located(
    tmp_path: Path, launcher: tuple[str, ...], how: list[str]
) -> None:
    assert len(trained(tmp_path, launcher, "bad", *how)) == 1, "both have the same weights"
    (file,) = (tmp_path / "runs/a/incidents").glob("*/incident.json")
    incident: dict[str, Any] = json.loads(file.read_text())
    line = 1 + SCRIPT.splitlines().index(next(text for text in SCRIPT.splitlines() if "/ weight" in text))
    assert (incident["birth"]["line"], incident["findings"][0]["code"]) == (line, "NUM006")
    assert incident["rank"] in (0, 1) and incident["world_size"] == 2
