"""The Trainer under StayFiniteCallback: counters, schedule, log, checkpoints and resume are honest."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from failing import Samples, line_of, model
from harness import guarded, same
from transformers import Trainer, TrainerCallback, TrainingArguments

from stayfinite import RunStopped
from stayfinite.integrations.transformers import StayFiniteCallback


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("out/checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def test_counters_schedule_and_log(tmp_path: Path) -> None:
    trained = guarded("transformers", "log_zero", tmp_path)
    trainer = trained.trainer
    assert trainer.state.global_step == trained.guard.step_count == 12
    assert (trained.guard.counters.applied, trained.guard.counters.skipped) == (11, 1)
    assert trainer.lr_scheduler.last_epoch == 11  # a refused step does not advance the schedule
    (skipped,) = [entry for entry in trainer.state.log_history if "stayfinite/what" in entry]
    assert skipped["stayfinite/skipped"] == 1 and skipped["stayfinite/action"] == "skip"
    assert skipped["step"] == trained.incidents[0]["step"] + 1  # the Trainer counts from 1
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3 and all(map(math.isfinite, losses))


def test_the_filter_of_nan_does_not_hide_an_event(tmp_path: Path) -> None:
    for number, hidden in enumerate((True, False)):
        more = {"logging_nan_inf_filter": hidden, "logging_steps": 1}
        trained = guarded("transformers", "log_zero", tmp_path / str(number), **more)
        history = trained.trainer.state.log_history
        assert sum("stayfinite/what" in entry for entry in history) == 1
        losses = [entry["loss"] for entry in history if "loss" in entry]
        assert len(losses) == 12  # the Trainer's own logs are all there
        assert sum(map(math.isfinite, losses)) == (12 if hidden else 11)
        assert math.isfinite(history[-1]["train_loss"])


@pytest.mark.parametrize("more", [{"gradient_accumulation_steps": 3}, {"bf16": True}, {"max_grad_norm": 0.0}])
def test_located(more: dict[str, Any], tmp_path: Path) -> None:
    trained = guarded("transformers", "zero_by_zero", tmp_path, **more)
    assert trained.incidents[0]["birth"]["line"] == line_of("zero_by_zero")
    assert all(torch.isfinite(value).all() for value in trained.weights().values())


def test_as_if_the_bad_batch_had_not_been_there(tmp_path: Path) -> None:
    """The weights are those of a training on the other batches alone, with the same schedule."""
    plain = {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "optim": "adamw_torch"}
    trained = guarded("transformers", "log_zero", tmp_path, **plain)
    bad = trained.incidents[0]["step"]
    torch.manual_seed(7)
    batches: list[Any] = []

    class Remembers(Trainer):
        def training_step(self, net: Any, inputs: Any, *args: Any) -> Any:
            batches.append(inputs)
            return super().training_step(net, inputs, *args)

    arguments = TrainingArguments(
        str(tmp_path / "order"), per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True, report_to=[],
        disable_tqdm=True, seed=7, save_strategy="no",
    )  # fmt: skip
    Remembers(model("healthy"), arguments, train_dataset=Samples("log_zero")).train()
    net = model("log_zero")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.0)
    for number, batch in enumerate(batches):
        if number != bad:
            net(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    assert same(net.state_dict(), trained.weights())


def test_every_checkpoint_is_finite_and_resumes_exactly(tmp_path: Path) -> None:
    whole = guarded("transformers", "log_zero", tmp_path / "whole", save_steps=1, save_total_limit=20)
    bad = whole.incidents[0]["step"]
    from safetensors.torch import load_file

    checkpoints = _checkpoints(tmp_path / "whole")
    assert len(checkpoints) == 12
    for checkpoint in checkpoints:
        weights = load_file(checkpoint / "model.safetensors")
        assert all(torch.isfinite(value).all() for value in weights.values())
    for step in (bad, bad + 1, bad + 2):  # before the refused step, right after it, and later
        folder = tmp_path / f"resumed{step}"
        again = guarded("transformers", "log_zero", folder, resume=str(checkpoints[step - 1]))
        assert same(again.weights(), whole.weights()), step
        assert again.trainer.state.global_step == 12
        assert again.trainer.lr_scheduler.last_epoch == 11
        assert again.findings == []


def test_a_poisoned_model_is_not_saved(tmp_path: Path) -> None:
    class SavesAtOnce(TrainerCallback):
        """Poisons the model after four good steps, and asks for a checkpoint after the guard's callback did."""

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            if state.global_step == 4:
                torch.nn.init.constant_(parts["model"].body.weight, float("nan"))
                control.should_save = True

    net = model("healthy")
    arguments = TrainingArguments(
        str(tmp_path / "out"), per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True, report_to=[],
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    callback = StayFiniteCallback(run_dir=tmp_path / "run", quiet=True, snapshot_every=0, policy="stop")
    trainer = Trainer(net, arguments, train_dataset=Samples("healthy"), callbacks=[callback, SavesAtOnce()])
    with pytest.warns(RuntimeWarning, match=r"checkpoint-4 was not written: body.weight holds NaN or Inf"):
        with pytest.raises(RunStopped):
            trainer.train()
    assert not _checkpoints(tmp_path)
    assert any("stayfinite/not_saved" in entry for entry in trainer.state.log_history)


def test_state_of_the_trainer_is_json(tmp_path: Path) -> None:
    guarded("transformers", "log_zero", tmp_path)
    newest = _checkpoints(tmp_path)[-1]
    history = json.loads((newest / "trainer_state.json").read_text())["log_history"]
    assert any(entry.get("stayfinite/what") == "the loss is inf" for entry in history)


def test_options() -> None:
    with pytest.raises(TypeError, match=r"StayFiniteCallback\(optimizer=...\): the framework decides that"):
        StayFiniteCallback(optimizer=None)
    with pytest.raises(TypeError, match=r"StayFiniteCallback\(polizy=...\): there is no such option"):
        StayFiniteCallback(polizy="skip")
