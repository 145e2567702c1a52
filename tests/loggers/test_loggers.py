"""The guard's numbers and incidents in TensorBoard and CSV, read back from the files; the others where installed."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard
from stayfinite.loggers.csv_file import CsvLogger
from stayfinite.loggers.tensorboard import TensorBoardLogger

STEPS, BAD = 8, 5


def train(folder: Path, logger: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(x: Tensor) -> Tensor:
        return model(x).square().mean() / x.sum().ne(0)

    with Guard(
        model, optimizer, run_dir=folder / "run", quiet=True, listeners=[logger], prove="off"
    ) as guard:
        for step in range(STEPS):
            guard.step(loss, torch.zeros(3, 4) if step == BAD else torch.randn(3, 4))


def test_csv(tmp_path: Path) -> None:
    train(tmp_path, CsvLogger(tmp_path / "deep" / "log.csv"))
    with (tmp_path / "deep" / "log.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    by_name: dict[str, dict[int, str]] = {}
    for row in rows:
        assert row["name"].startswith("stayfinite/")
        by_name.setdefault(row["name"], {})[int(row["step"])] = row["value"]
    steps = [json.loads(line) for line in (tmp_path / "run" / "run.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in steps if "event" not in line}
    assert {step: float(value) for step, value in by_name["stayfinite/loss"].items()} == {
        step: value for step, value in losses.items() if step != BAD
    }
    assert by_name["stayfinite/nonfinite/loss"] == {BAD: "1.0"}
    assert by_name["stayfinite/applied"][BAD] == "0.0" and by_name["stayfinite/applied"][0] == "1.0"
    assert by_name["stayfinite/incident"] == {BAD: "1"}
    assert not any(row["value"] in ("nan", "inf", "-inf") for row in rows)


def test_csv_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        train(tmp_path, CsvLogger(tmp_path / "log.csv"))
    assert (tmp_path / "log.csv").read_text(encoding="utf-8").count("step,name,value,text") == 1


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, TensorBoardLogger(tmp_path / "tb"))
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    losses = {event.step: event.value for event in events.Scalars("stayfinite/loss")}
    assert sorted(losses) == [step for step in range(STEPS) if step != BAD]
    assert [event.step for event in events.Scalars("stayfinite/nonfinite/loss")] == [BAD]
    assert "stayfinite/incident/text_summary" in events.Tags()["tensors"]


def test_loggers_are_imported_without_their_tools() -> None:
    code = (
        "import stayfinite.loggers.wandb, stayfinite.loggers.mlflow, stayfinite.loggers.tensorboard, sys;"
        "assert not {'torch', 'wandb', 'mlflow', 'tensorboard'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stayfinite.loggers.wandb import WandbLogger

    monkeypatch.setenv("WANDB_MODE", "offline")
    train(tmp_path, WandbLogger(project="stayfinite-test", dir=str(tmp_path)))
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    until = time.monotonic() + 30  # another process of wandb writes it
    while b"stayfinite/nonfinite/loss" not in written.read_bytes() and time.monotonic() < until:
        time.sleep(0.1)
    content = written.read_bytes()
    assert b"stayfinite/loss" in content and b"stayfinite/nonfinite/loss" in content


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_in_a_file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stayfinite.loggers.mlflow import MlflowLogger

    monkeypatch.setitem(os.environ, "MLFLOW_ALLOW_FILE_STORE", "true")
    train(tmp_path, MlflowLogger(tracking_uri=(tmp_path / "store").as_uri()))
    (losses,) = (tmp_path / "store").rglob("metrics/stayfinite/loss")
    assert len(losses.read_text(encoding="utf-8").splitlines()) == STEPS - 1
    (marks,) = (tmp_path / "store").rglob("metrics/stayfinite/nonfinite/loss")
    assert len(marks.read_text(encoding="utf-8").splitlines()) == 1
