"""`stayfinite run` on scripts of each framework that know nothing of it: healthy bits, failing lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from failing import FAILING, line_of
from harness import FRAMEWORKS, same

SCRIPT = Path(__file__).with_name("train.py")
EVERYWHERE = ("sqrt_at_zero", "unsafe_where", "absurd_rate")
"""A bad gradient, a hidden one, a bad setting: these are run as scripts in every framework; the others in one each."""
TABLE = [
    (framework, case)
    for number, case in enumerate(FAILING)
    for framework in (FRAMEWORKS if case in EVERYWHERE else (FRAMEWORKS[number % len(FRAMEWORKS)],))
]


def _run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STAYFINITE_PROVE": "off", **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def _guarded(framework: str, case: str, folder: Path, **variables: str) -> tuple[Any, list[dict[str, Any]]]:
    (folder / "out").mkdir(parents=True)
    report = folder / "incidents.json"
    command = [sys.executable, "-m", "stayfinite", "run", "--format", "json", "--output", str(report)]
    ended = _run(folder, *command, str(SCRIPT), framework, case, str(folder / "out"), **variables)
    return ended, json.loads(report.read_text())["incidents"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_healthy(framework: str, tmp_path: Path) -> None:
    (tmp_path / "plain" / "out").mkdir(parents=True)
    plain = _run(
        tmp_path / "plain", sys.executable, str(SCRIPT), framework, "healthy", str(tmp_path / "plain" / "out")
    )
    watched, incidents = _guarded(framework, "healthy", tmp_path / "watched")
    assert (plain.returncode, watched.returncode) == (0, 0), watched.stderr
    assert incidents == []
    before, after = (torch.load(tmp_path / kind / "out" / "weights.pt") for kind in ("plain", "watched"))
    assert same(before, after)
    more = set(watched.stderr.splitlines()) - set(plain.stderr.splitlines())
    assert not [line for line in more if "arn" in line], "a warning that the script alone does not give"


@pytest.mark.parametrize(("framework", "case"), TABLE, ids=[" ".join(row) for row in TABLE])
def test_failing(framework: str, case: str, tmp_path: Path) -> None:
    ended, incidents = _guarded(framework, case, tmp_path)
    birth = incidents[0]["birth"]
    born = line_of("poisoned_file" if case == "poisoned_start" else case)  # the whole script is traced
    assert (Path(birth["file"]).name, birth["line"]) == ("failing.py", born), ended.stderr
    weights = tmp_path / "out" / "weights.pt"
    if weights.exists() and case != "poisoned_start":
        assert all(torch.isfinite(value).all() for value in torch.load(weights).values())


def test_accumulated(tmp_path: Path) -> None:
    """The Trainer reads all micro-batches of an update ahead of the first."""
    _, incidents = _guarded("transformers", "masked_row", tmp_path, ACCUMULATE="3")
    assert incidents[0]["birth"]["line"] == line_of("masked_row")
    assert incidents[0]["action"] == "skip"
