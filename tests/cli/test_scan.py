"""`stayfinite scan` as a user runs it: real processes, real files, exit codes, outputs."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import preloaded
from cli.running import bytes_read
from stayfinite.cli import main

torch.set_num_threads(1)
NAN = float("nan")


def run(*arguments: Any, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["scan", *map(str, arguments)], input=given)


def save(path: Path, step: int, bad: bool = False, lr: float = 1e-3) -> Path:
    torch.manual_seed(step)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if bad:
        with torch.no_grad():
            model[1].weight[0, 1] = NAN
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
    return path


def test_exit_codes(tmp_path: Path) -> None:
    good, bad = save(tmp_path / "good.pt", 1), save(tmp_path / "bad.pt", 2, bad=True)
    text = tmp_path / "text.pt"
    text.write_text("not a checkpoint")
    assert run(good).exit_code == 0
    assert run(bad).exit_code == 1
    assert run(text).exit_code == 2
    assert run(good, bad, text).exit_code == 2
    missing = run(tmp_path / "missing.pt")
    assert missing.exit_code == 2
    assert "no such file" in missing.output
    assert run().exit_code == 2
    assert run(bad, "--ignore", "CKP001").exit_code == 0
    assert run(bad, "--select", "CKP002").exit_code == 0
    assert run(bad, "--select", "nonfinite-weights").exit_code == 1


def test_text_says_where_and_what_to_do(tmp_path: Path) -> None:
    result = run(save(tmp_path / "bad.pt", 2, bad=True))
    assert "model.1.weight" in result.output
    assert "1 NaN of 8 values" in result.output
    assert "first at [0, 1]" in result.output
    assert "learning rate  0.001 now" in result.output
    assert "what to do:" in result.output


def test_json_is_a_contract(tmp_path: Path) -> None:
    bad = save(tmp_path / "bad.pt", 2, bad=True)
    run(bad, "--format", "json", "--output", tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["schema"] == 1
    (finding,) = report["findings"]
    assert (finding["code"], finding["severity"], finding["file"]) == ("CKP001", "error", str(bad))
    assert (finding["evidence"]["nan"], finding["evidence"]["first_index"]) == (1, [0, 1])
    assert report["checkpoints"][0]["rates"]["current"] == [1e-3]


def test_sarif_and_github(tmp_path: Path) -> None:
    bad = save(tmp_path / "bad.pt", 2, bad=True)
    sarif = json.loads(run(bad, "--format", "sarif").output)
    assert sarif["version"] == "2.1.0"
    (result,) = sarif["runs"][0]["results"]
    rules = sarif["runs"][0]["tool"]["driver"]["rules"]
    assert (result["ruleId"], result["level"], rules[result["ruleIndex"]]["id"]) == (
        "CKP001",
        "error",
        "CKP001",
    )
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == bad.as_uri()
    github = run(bad, "--format", "github").output
    assert github.startswith("::error title=CKP001 nonfinite-weights,file=")


def test_a_thousand_bad_tensors_are_one_screen_unless_all(tmp_path: Path) -> None:
    torch.save({f"layers.{i}.weight": torch.full((4, 4), NAN) for i in range(1000)}, tmp_path / "bad.pt")
    short, full = run(tmp_path / "bad.pt"), run(tmp_path / "bad.pt", "--all")
    assert len(short.output.splitlines()) <= 50
    assert "more of CKP001" in short.output
    assert full.output.count("CKP001 ") >= 1000


def test_folders_and_patterns(tmp_path: Path) -> None:
    save(tmp_path / "a.pt", 1)
    save(tmp_path / "b.pt", 2, bad=True)
    (tmp_path / "inner").mkdir()
    save(tmp_path / "inner" / "c.ckpt", 3)
    (tmp_path / "tokens.bin").write_bytes(b"\x01\x02" * 100)
    report = json.loads(run(tmp_path, "--format", "json").output)
    assert {Path(c["path"]).name: c["healthy"] for c in report["checkpoints"]} == {
        "a.pt": True, "b.pt": False, "c.ckpt": True,
    }  # fmt: skip
    report = json.loads(run(tmp_path / "[ab].pt", "--format", "json").output)
    assert len(report["checkpoints"]) == 2
    assert run(tmp_path / "*.none").exit_code == 2


def test_config_option(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "a.pt", 1, lr=5e-4)
    (tmp_path / "run.yaml").write_text("train:\n  learning_rate: 1e-4\n")
    result = run(checkpoint, "--config", tmp_path / "run.yaml")
    assert "CKP022" in result.output
    assert "0.0001" in result.output
    assert "0.0005" in result.output
    (tmp_path / "none.yaml").write_text("a: 1\n")
    assert run(checkpoint, "--config", tmp_path / "none.yaml").exit_code == 2


def test_against(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a.pt", 1), save(tmp_path / "b.pt", 2)
    assert (
        "0 of 16 tensors differ" in run(a, "--against", a).output or "0 of" in run(a, "--against", a).output
    )
    report = json.loads(run(a, "--against", b, "--format", "json").output)
    rows = {row["tensor"]: row for row in report["differences"]}
    left, right = torch.load(a), torch.load(b)
    apart = (left["model"]["0.weight"] - right["model"]["0.weight"]).abs().max().item()
    assert rows["model.0.weight"]["status"] == "changed"
    assert rows["model.0.weight"]["largest"] == pytest.approx(apart)
    assert rows["optimizer.state.0.step"]["status"] == "same"


def test_quarantine_asks_and_keeps_the_good(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    save(tmp_path / "runs" / "a.pt", 1)
    save(tmp_path / "runs" / "b.pt", 2, bad=True)
    away = tmp_path / "away"
    refused = run(tmp_path / "runs", "--quarantine", away, given="n\n")
    assert "nothing was moved" in refused.output
    assert (tmp_path / "runs" / "b.pt").exists()
    run(tmp_path / "runs", "--quarantine", away, "--yes")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a.pt"]
    assert [path.name for path in away.iterdir()] == ["b.pt"]


def test_quarantine_never_takes_a_good_checkpoint_inside_a_bad_folder(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.tensor([NAN, 1.0])}, tmp_path / "model.safetensors")
    inner = tmp_path / "checkpoint-100"
    inner.mkdir()
    save_file({"w": torch.tensor([1.0, 2.0])}, inner / "model.safetensors")
    run(tmp_path, "--quarantine", tmp_path.parent / f"{tmp_path.name}-away", "--yes")
    assert (inner / "model.safetensors").exists()
    assert not (tmp_path / "model.safetensors").exists()


def test_as_a_module_without_torch_imported_first(tmp_path: Path) -> None:
    bad = save(tmp_path / "bad.pt", 2, bad=True)
    done = subprocess.run(
        [sys.executable, "-m", "stayfinite", "scan", str(bad)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "CKP001" in done.stdout


@pytest.mark.long
def test_ranks_share_the_work_and_give_one_report(tmp_path: Path) -> None:
    for step in range(3):
        save(tmp_path / f"step_{step}.pt", step, bad=step == 2)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += ["-m", "stayfinite", "scan", str(tmp_path), "--format", "json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert [f["code"] for f in report["findings"]] == ["CKP001"]
    assert report["findings"][0]["evidence"]["first_index"] == [0, 1]
    assert [c["healthy"] for c in report["checkpoints"]] == [True, True, False]


def test_ctrl_c_ends_a_long_scan(tmp_path: Path) -> None:
    """Two terabytes of zeros (a file of holes) would take many minutes."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 39], "data_offsets": [0, 1 << 41]}}).encode()
    with (tmp_path / "endless.safetensors").open("wb") as handle:
        handle.write(struct.pack("<Q", len(header)) + header)
        handle.truncate(8 + len(header) + (1 << 41))
    command = [sys.executable, "-m", "stayfinite", "scan", str(tmp_path / "endless.safetensors")]
    process = preloaded.start(command)
    try:
        while process.poll() is None and bytes_read(process.pid) < 1 << 28:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
