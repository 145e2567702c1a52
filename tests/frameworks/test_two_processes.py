"""Two processes inside each framework: the same bits as without a guard, one decision, the right rank and line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stayfinite.checkpoint import verify

pytest.importorskip("transformers")
pytest.importorskip("lightning")
pytest.importorskip("accelerate")

BEGINNING = """
import hashlib, os, sys, torch
from torch import nn
torch.manual_seed(0)

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

def tell(rank, net, *more):
    bits = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    with open(f"weights.{rank}", "w") as file:
        print(hashlib.sha256(bits).hexdigest(), *more, file=file)

callbacks, own = [], "callback" in sys.argv
"""
TRAININGS = {
    "transformers": """
from transformers import Trainer, TrainingArguments, set_seed
set_seed(0)
made = TrainingArguments("out", per_device_train_batch_size=8, max_steps=4, save_steps=4, use_cpu=True,
                         report_to=[], disable_tqdm=True, learning_rate=1e-2)
if own:
    from stayfinite.integrations.transformers import StayFiniteCallback
    callbacks = [StayFiniteCallback(run_dir="runs/a")]
trainer = Trainer(Net(), made, train_dataset=Samples(), callbacks=callbacks)
trainer.train()
tell(os.environ["RANK"], trainer.model, trainer.state.global_step)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
""",
    "lightning": """
import lightning

class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, number):
        loss = self.net(**batch)["loss"]
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

if own:
    from stayfinite.integrations.lightning import StayFiniteCallback
    callbacks = [StayFiniteCallback(run_dir="runs/a")]
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
                            enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks)
lit = Lit()
trainer.fit(lit, torch.utils.data.DataLoader(Samples(), batch_size=8))
trainer.save_checkpoint("out/checkpoint.ckpt")
mean = float(trainer.callback_metrics["train_loss"])
tell(trainer.global_rank, lit, trainer.global_step, mean == mean or not own)
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
loader = torch.utils.data.DataLoader(Samples(), batch_size=8)
net, optimizer, batches, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
if own:
    from stayfinite import Guard
    guard = Guard.from_accelerator(accelerator, run_dir="runs/a")
    batches = guard.watch(batches)
for batch in batches:
    accelerator.backward(net(**batch)["loss"])
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
accelerator.save_state("out/saved")
if own:
    guard.close()
tell(accelerator.process_index, accelerator.unwrap_model(net), scheduler.get_last_lr())
accelerator.end_training()
""",
}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
RUN = ("-m", "stayfinite", "run", "--nproc-per-node", "2", "--run-dir", "runs/a")
OWN_LAUNCHERS = {
    "transformers": TORCHRUN,
    "lightning": (),  # it starts the second process itself
    "accelerate": TORCHRUN,  # on processors alone, its own starts a single process
}


def trained(framework: str, folder: Path, launcher: tuple[str, ...], *arguments: str) -> tuple[set[str], str]:
    """What the ranks have in the end, and what was said."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(BEGINNING + TRAININGS[framework], encoding="utf-8")
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
    return {(folder / f"weights.{rank}").read_text() for rank in (0, 1)}, " ".join(done.stderr.split())


@pytest.fixture(scope="module", params=list(TRAININGS))
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def unguarded(framework: str, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return trained(framework, tmp_path_factory.mktemp("plain"), TORCHRUN)[0]


@pytest.mark.parametrize("launcher, how", [(TORCHRUN, ["callback"]), (RUN, [])], ids=["callback", "run"])
def test_a_healthy_training_has_the_same_bits(
    framework: str, tmp_path: Path, unguarded: set[str], launcher: tuple[str, ...], how: list[str]
) -> None:
    told, said = trained(framework, tmp_path, launcher, *how)
    assert len(unguarded) == 1 and told == unguarded
    assert "stayfinite:" not in said and not list(tmp_path.glob("runs/a/incidents/*"))


@pytest.mark.parametrize("how", ["callback", "run"])
def test_a_bad_sample_of_one_process_is_refused_by_both_and_located(
    framework: str, tmp_path: Path, how: str
) -> None:
    launcher = RUN if how == "run" else OWN_LAUNCHERS[framework]
    told, said = trained(framework, tmp_path, launcher, "bad", *([how] if how == "callback" else []))
    assert len(told) == 1, "both have the same weights"
    assert "False" not in told.pop(), "the mean of the epoch knows of the refused step"
    assert said.count("the update is not applied") == 1
    assert "trying remedies" not in said  # a rank alone would wait for the other one there
    (file,) = (tmp_path / "runs/a/incidents").glob("*/incident.json")
    incident: dict[str, Any] = json.loads(file.read_text())
    lines = BEGINNING.splitlines()
    line = 1 + lines.index(next(text for text in lines if "/ weight" in text))
    assert (incident["birth"]["line"], incident["findings"][0]["code"]) == (line, "NUM006")
    assert incident["world_size"] == 2
    # The Trainer shuffles; the others deal samples, or batches of eight, to the ranks in turn.
    assert incident["rank"] in ((0, 1) if framework == "transformers" else (1,))
    files = [path for path in (tmp_path / "out").rglob("*") if path.suffix in (".safetensors", ".ckpt")]
    assert files and all(verify(path).healthy for path in files)


def test_ranks_that_lightning_starts_itself_are_not_waited_for(tmp_path: Path) -> None:
    """`run` is in the first process alone: it refuses nothing, does not hang, and says what to do."""
    told, said = trained("lightning", tmp_path, ("-m", "stayfinite", "run", "--run-dir", "runs/a"))
    assert len(told) == 1
    assert "watched but not guarded: not all 2 ranks" in said and "--nproc-per-node 2" in said
