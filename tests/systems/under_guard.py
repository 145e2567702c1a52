"""Runs an example under guard, under `stayfinite run` and through `stayfinite scan`, and reads what they wrote."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from click.testing import CliRunner
from torch.utils._pytree import tree_leaves

import preloaded
from stayfinite.cli import main as command_line
from stayfinite.findings import Incident


def write_config(example: SimpleNamespace, name: str, folder: Path, **changes: Any) -> Path:
    """A copy of one of the example's configurations; a change that is a dict changes the keys of that section."""
    config: dict[str, Any] = yaml.safe_load((example.folder / name).read_text())
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    path = folder / name
    path.write_text(yaml.safe_dump(config))
    return path


@dataclass(frozen=True)
class Outcome:
    """What a guarded training left behind."""

    code: int  # 0 when through, 1 when its policy stopped it
    printed: str
    folder: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        """The metrics and counters it printed last."""
        last: dict[str, Any] = json.loads(self.printed.splitlines()[-1])
        return last

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.folder / "run.jsonl").read_text().splitlines()]
        return [line for line in lines if "event" not in line]

    @property
    def incidents(self) -> list[Incident]:
        files = sorted((self.folder / "incidents").glob("*/incident.json"))
        return [Incident.from_json(json.loads(file.read_text())) for file in files]

    @property
    def checkpoint(self) -> Path:
        """What the run ended with: its result, or the clean copy it stopped with."""
        return self.folder / "final.pt" if self.code == 0 else next((self.folder / "snapshots").glob("*.pt"))

    def assert_counters_are_right(self) -> None:
        """Every step is counted once, and the counters say what the record says."""
        actions = [record["action"] for record in self.records]
        result = self.result
        assert result["steps"] == len(actions)
        assert result["applied"] == actions.count("none")
        assert result["backoffs"] == actions.count("backoff")
        assert result["skipped"] == len(actions) - result["applied"] - result["backoffs"]
        assert result["rollbacks"] == actions.count("rollback")
        losses = [float(record["loss"]) for record in self.records if record["action"] == "none"]
        assert all(torch.isfinite(torch.tensor(loss)) for loss in losses)

    def assert_all_state_is_finite(self) -> None:
        assert not bad_tensors(torch.load(self.checkpoint, weights_only=True))
        assert scan(self.checkpoint)[0] == 0


def bad_tensors(state: Any) -> int:
    """How many floating tensors hold NaN or Inf."""
    tensors = [t for t in tree_leaves(state) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    assert tensors
    return sum(not bool(torch.isfinite(t).all()) for t in tensors)


def run_guarded(example: SimpleNamespace, config: Path, folder: Path, *options: object) -> Outcome:
    torch.set_num_threads(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        code = example.train_guarded.main(["--config", str(config), "--out", str(folder), *map(str, options)])
    return Outcome(code, printed.getvalue(), folder)


def run_plain(example: SimpleNamespace, config: Path, folder: Path, *options: object) -> dict[str, float]:
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        metrics: dict[str, float] = example.train.main(
            ["--config", str(config), "--out", str(folder), *map(str, options)]
        )
    return metrics


def run_watched(example: SimpleNamespace, config: Path, folder: Path, *options: object) -> Incident:
    """`stayfinite run train.py`, the script as it is; its first incident."""
    found = folder / "incidents.json"
    options_of_run = ["--fail-under", "0", "--format", "json", "--output", str(found)]
    options_of_run += ["--run-dir", str(folder / "run")]
    command = [sys.executable, "-m", "stayfinite", "run", *options_of_run]
    script = ["train.py", "--config", str(config), "--out", str(folder / "watched"), *map(str, options)]
    done = preloaded.run(
        [*command, *script],
        cwd=example.folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    incidents = json.loads(found.read_text())["incidents"]
    assert incidents, done.stderr
    return Incident.from_json(incidents[0])


def scan(*arguments: object) -> tuple[int, str]:
    """`stayfinite scan`: its exit code and what it printed."""
    done = CliRunner().invoke(command_line, ["scan", *map(str, arguments)])
    return done.exit_code, done.output


def line_of(example: SimpleNamespace, file: str, text: str) -> int:
    """The number of the only line of a file of the example that holds this text."""
    lines = (example.folder / file).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return number


def assert_born(incident: Incident, example: SimpleNamespace, file: str, text: str) -> None:
    assert incident.birth is not None and incident.birth.file is not None
    assert example.folder / incident.birth.file == example.folder / file  # relative where the script was
    assert incident.birth.line == line_of(example, file, text)


def assert_same_explanation(watched: Incident, guarded: Incident) -> None:
    """Same op, line, phase and first cause. An update has no line in common: there the guard makes it."""
    assert watched.birth is not None and guarded.birth is not None
    assert (watched.birth.op, watched.phase) == (guarded.birth.op, guarded.phase)
    if guarded.phase != "optimizer":
        assert (watched.birth.file, watched.birth.line) == (guarded.birth.file, guarded.birth.line)
    assert watched.findings[0].cause == guarded.findings[0].cause
