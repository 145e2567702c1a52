"""Ordinary training scripts, one a framework: `train.py FRAMEWORK CASE FOLDER`. Nothing here knows of stayfinite."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from failing import Samples, learning_rate, model

BATCH = 4


Watch = Callable[..., Any]
"""Given a model and an optimizer, or an Accelerator: what a loader is put into."""


def unwatched(*parts: Any) -> Callable[[Any], Any]:
    return lambda loader: loader


def plain(case: str, folder: str, watch: Watch = unwatched) -> torch.nn.Module:
    net = model(case)
    optimizer = torch.optim.AdamW(net.parameters(), lr=learning_rate(case))
    torch.manual_seed(7)
    loader = torch.utils.data.DataLoader(Samples(case), batch_size=BATCH, shuffle=True)
    for batch in watch(net, optimizer)(loader):
        loss = net(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return net


def accelerated(case: str, folder: str, watch: Watch = unwatched) -> torch.nn.Module:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = model(case)
    optimizer = torch.optim.AdamW(net.parameters(), lr=learning_rate(case))
    torch.manual_seed(7)
    loader = torch.utils.data.DataLoader(Samples(case), batch_size=BATCH, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for batch in watch(accelerator)(loader):
        loss = net(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(folder)
    return accelerator.unwrap_model(net)


def transformers_trainer(
    case: str, folder: str, callbacks: Sequence[Any] = (), resume: str | None = None, **more: Any
) -> torch.nn.Module:
    from transformers import Trainer, TrainingArguments

    net = model(case)
    settings: dict[str, Any] = {
        "output_dir": folder,
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "learning_rate": learning_rate(case),
        "use_cpu": True,
        "report_to": [],
        "logging_steps": 4,
        "save_steps": 4,
        "disable_tqdm": True,
        "seed": 7,
        "gradient_accumulation_steps": int(os.environ.get("ACCUMULATE", "1")),
    }
    arguments = TrainingArguments(**{**settings, **more})
    trainer = Trainer(net, arguments, train_dataset=Samples(case), callbacks=list(callbacks))
    net.trainer = [trainer]  # for those who want to look
    trainer.train(resume_from_checkpoint=resume)
    return net


def lightning_trainer(
    case: str, folder: str, callbacks: Sequence[Any] = (), manual: bool = False, **more: Any
) -> torch.nn.Module:
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model(case)
            self.automatic_optimization = not manual

        def training_step(self, batch, number):
            loss = self.net(**batch)["loss"]
            self.log("train_loss", loss, on_step=False, on_epoch=True)
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=learning_rate(case))

    lit = Lit()
    torch.manual_seed(7)
    loader = torch.utils.data.DataLoader(Samples(case), batch_size=BATCH, shuffle=True)
    settings: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "default_root_dir": folder,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(callbacks=list(callbacks), **{**settings, **more})
    lit.net.trainer = [trainer]  # for those who want to look
    trainer.fit(lit, loader)
    return lit.net


FRAMEWORKS = {
    "plain": plain,
    "accelerate": accelerated,
    "transformers": transformers_trainer,
    "lightning": lightning_trainer,
}

if __name__ == "__main__":
    framework, case, folder = sys.argv[1:4]
    torch.set_num_threads(1)
    net = FRAMEWORKS[framework](case, folder)
    torch.save(net.state_dict(), f"{folder}/weights.pt")
