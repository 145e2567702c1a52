"""`stayfinite data` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner, Result

from stayfinite.cli import main


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["data", *map(str, arguments)])


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    good, bad = tmp_path / "deep" / "embeddings.npy", tmp_path / "features.pt"
    np.save(good, np.random.default_rng(0).normal(size=(50, 8)))
    values = torch.randn(50, 8)
    values[4] = float("nan")
    torch.save({"features": values}, bad)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing")
    result = run(tmp_path)
    assert result.exit_code == 1 and "sample 4" in result.output and "computed again" in result.output
    assert "the cache is usable: nothing has to be computed again" in result.output
    data = json.loads(run(tmp_path, "--format", "json").stdout)
    assert [file["recompute"] for file in data["files"]] == ["rows", "nothing"]
    assert run(tmp_path, "--ignore", "DAT").exit_code == 0
    assert run(good).exit_code == 0
    assert "::error" in run(bad, "--format", "github").output
    assert json.loads(run(bad, "--format", "sarif").stdout)["version"] == "2.1.0"


def test_exit_code_two_only_where_nothing_could_be_read(tmp_path: Path) -> None:
    good, noise = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(good, np.random.default_rng(0).normal(size=(50, 8)))
    noise.write_bytes(b"\x00\x01\x02\x03" * 50)
    assert run(tmp_path / "none.pt").exit_code == 2
    alone = run(noise)
    assert alone.exit_code == 2 and "Error" in alone.output
    assert run(good, noise).exit_code == 1, "damage is a finding at error level"
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty").exit_code == 2


def test_options(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y,kind\n" + "\n".join(f"{i / 10},{i % 7 / 3},{i % 4}" for i in range(100)))
    assert run(path).exit_code == 0
    assert run(path, "--labels", "kind", "--classes", 4).exit_code == 0
    assert "DAT028" in run(path, "--labels", "kind", "--classes", 3).output
    assert "DAT021" in run(path, "--range", 0, 5).output
    assert run(path, "--range", 5, 0).exit_code == 2
