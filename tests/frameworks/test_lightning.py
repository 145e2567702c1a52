"""Lightning's Trainer under StayFiniteCallback: closures, logs, averages, schedules, files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from failing import Samples, line_of, model
from harness import guarded
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger

from stayfinite import Guard
from stayfinite.integrations.lightning import StayFiniteCallback


class OwnSgd(torch.optim.Optimizer):
    """An optimizer that nobody knows, as users write them."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad)
        return loss


@pytest.mark.parametrize(
    "more", [{}, {"manual": True}, {"accumulate_grad_batches": 3}, {"gradient_clip_val": 1.0}], ids=str
)
def test_located(more: dict[str, Any], tmp_path: Path) -> None:
    trained = guarded("lightning", "log_zero", tmp_path, **more)
    (incident,) = trained.incidents
    assert incident["birth"]["line"] == line_of("log_zero")
    assert incident["phase"] == "forward" and incident["trigger"] == "loss"
    assert all(torch.isfinite(value).all() for value in trained.weights().values())
    assert trained.guard.counters.skipped == 1


@pytest.mark.parametrize("kind", [OwnSgd, torch.optim.LBFGS])
def test_a_closure_is_not_the_optimizer(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "AdamW", kind)
    trained = guarded("lightning", "log_zero", tmp_path)
    incident = trained.incidents[0]
    assert incident["birth"]["line"] == line_of("log_zero")
    assert incident["phase"] == "forward" and incident["trigger"] == "loss"
    assert all(torch.isfinite(value).all() for value in trained.weights().values())


def test_the_mean_of_the_epoch_is_that_of_the_other_batches(tmp_path: Path) -> None:
    trained = guarded("lightning", "log_zero", tmp_path)
    losses = [event["loss"] for event in trained.events if event.get("action") == "none"]
    assert len(losses) == 11
    mean = float(trained.trainer.callback_metrics["train_loss"])
    assert mean == pytest.approx(sum(losses) / 11, rel=1e-5)


def test_skipped_steps_reach_the_logger(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="log", version="0")
    guarded("lightning", "log_zero", tmp_path, logger=logger, log_every_n_steps=1)
    rows = list(csv.DictReader((tmp_path / "log" / "0" / "metrics.csv").read_text().splitlines()))
    assert [row["stayfinite/skipped"] for row in rows if row.get("stayfinite/skipped")] == ["1.0"]


def test_averages_and_checkpoints_stay_finite(tmp_path: Path) -> None:
    averages = EMAWeightAveraging(decay=0.9)
    files = ModelCheckpoint(tmp_path / "files", every_n_train_steps=1, save_top_k=-1)
    trained = guarded("lightning", "log_zero", tmp_path, callbacks=[averages, files])
    assert all(torch.isfinite(value).all() for value in trained.weights().values())
    written = list((tmp_path / "files").glob("*.ckpt"))
    assert len(written) == 12
    for file in written:
        weights = torch.load(file, weights_only=True)["state_dict"]
        assert all(torch.isfinite(value).all() for value in weights.values())


def test_stochastic_weight_averaging_is_not_poisoned(tmp_path: Path) -> None:
    average = StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=1)
    trained = guarded("lightning", "log_zero", tmp_path, max_epochs=3, callbacks=[average])
    assert all(torch.isfinite(value).all() for value in trained.weights().values())
    assert trained.guard.counters.skipped == 3


def test_schedules_by_steps_are_held_and_by_epochs_are_not(tmp_path: Path) -> None:
    from stayfinite.integrations.lightning import StayFiniteCallback

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model("log_zero")

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1e-3)
            steps = torch.optim.lr_scheduler.StepLR(optimizer, 5)
            epochs = torch.optim.lr_scheduler.StepLR(optimizer, 50)
            return [optimizer], [{"scheduler": steps, "interval": "step"}, {"scheduler": epochs}]

    loader = torch.utils.data.DataLoader(Samples("log_zero"), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[StayFiniteCallback(run_dir=tmp_path / "run", policy="skip", quiet=True)], default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Lit(), loader)
    steps, epochs = (config.scheduler for config in trainer.lr_scheduler_configs)
    assert (steps.last_epoch, epochs.last_epoch) == (22, 2)
    assert trainer.global_step == 24


def test_a_loop_of_fabric(tmp_path: Path) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    net = model("log_zero")
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(Samples("log_zero"), batch_size=4))
    guard = Guard(net, optimizer, run_dir=tmp_path / "run", policy="skip", quiet=True)
    for batch in guard.watch(loader):
        loss = net(**batch)["loss"]
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    assert guard.counters.applied == 11 and guard.counters.skipped == 1
    assert all(torch.isfinite(value).all() for value in net.state_dict().values())


class TakesTurns(lightning.LightningModule):
    """Two optimizers by hand, one after the other; in batch 2 the loss of one of them takes the logarithm of 0."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 2) for _ in range(2))
        self.bad = bad

    def training_step(self, batch: Any, number: int) -> None:
        for turn, optimizer in enumerate(self.optimizers()):
            self.toggle_optimizer(optimizer)
            shares = self.parts[turn](batch[0]).softmax(-1) * (turn != self.bad or number != 2)
            loss = -shares.log().mean()  # born-here
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), 1e-2) for part in self.parts]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_step_of_two_optimizers_is_located_in_the_turn_of_either(bad: int, tmp_path: Path) -> None:
    callback = StayFiniteCallback(policy="skip", run_dir=tmp_path / "run")
    lit = TakesTurns(bad)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(lit, loader)
    (file,) = (tmp_path / "run" / "incidents").glob("*/incident.json")
    incident = json.loads(file.read_text(encoding="utf-8"))
    assert "born-here" in incident["birth"]["source"] and incident["findings"][0]["code"] == "NUM001"
    assert callback.guard.counters.skipped == 1 and callback.guard.counters.applied == 9
    assert all(parameter.requires_grad and parameter.isfinite().all() for parameter in lit.parameters())
