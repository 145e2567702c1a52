"""Broken, binary, cut and impossible files, given to each command: named, no traceback, no hang, never healthy."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import preloaded
from cli.hostile_files import CONTENTS, DAMAGED, PLACES
from stayfinite.cli import main

NAMES = {
    "lint": ("x.json", "x.yaml", "x.py", "x.toml"),
    "data": ("x.npy", "x.npz", "x.pt", "x.safetensors", "x.csv"),
    "logs": ("x.jsonl", "x.json", "x.csv", "x.log"),
    "scan": ("x.pt", "x.safetensors", "x.npz", "x.bin"),
    "doctor": ("x.pt", "x.json", "x.log", "x.npy", "x.yaml", "x.py"),
}
FINE_WHEN_EMPTY = {("lint", "x.yaml"), ("lint", "x.py"), ("lint", "x.toml"), ("doctor", "x.py")}
NOT_WORTH_A_WORD = {("empty", "x.yaml"), ("long line", "x.log")}
"""What doctor passes over silently among a project's files: settings without a key, text without a loss."""


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    def too_long(number: int, frame: Any) -> None:
        pytest.fail("no answer within a minute")  # no OSError, which readers expect and catch

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def run(command: str, path: Path) -> Result:
    result = CliRunner().invoke(main, [command, str(path.parent if command == "doctor" else path)])
    assert result.exception is None or isinstance(result.exception, SystemExit), (path, result.exception)
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("command", NAMES)
@pytest.mark.parametrize("kind", CONTENTS)
def test_contents(command: str, kind: str, tmp_path: Path) -> None:
    for name in NAMES[command]:
        path = tmp_path / name.replace(".", "-") / name
        path.parent.mkdir()
        path.write_bytes(CONTENTS[kind]())
        result = run(command, path)
        if kind == "empty" and (command, name) in FINE_WHEN_EMPTY:
            assert result.exit_code == 0 and "nothing found" in result.output
            continue
        # Where a part can be read, the damage is a finding; where nothing can, the answer is 2.
        assert result.exit_code == (1 if "ends at byte" in result.output else 2), (name, result.output)
        if command != "doctor" or (kind, name) not in NOT_WORTH_A_WORD:
            assert name in result.output, (name, result.output)


@pytest.mark.parametrize("command", NAMES)
@pytest.mark.parametrize("kind", PLACES)
def test_places(command: str, kind: str, tmp_path: Path) -> None:
    for name in NAMES[command]:
        path = tmp_path / name.replace(".", "-") / name
        path.parent.mkdir()
        PLACES[kind](path)
        result = run(command, path)
        assert result.exit_code == 2, (name, result.output)
        if command != "doctor" or kind != "folder":  # an empty folder in a project needs no word
            assert name in result.output, (name, result.output)


@pytest.mark.parametrize("command", ["data", "scan", "doctor"])
@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_that_other_readers_refuse(command: str, kind: str, tmp_path: Path) -> None:
    name, make = DAMAGED[kind]
    path = tmp_path / name
    path.write_bytes(make())
    result = run(command, path)
    assert result.exit_code == 1, result.output
    assert name in result.output and "error" in result.output


_AS_NOBODY = """
import os, sys
from click.testing import CliRunner
from stayfinite.cli import main
import stayfinite.cli._lint, stayfinite.cli._data, stayfinite.cli._logs, stayfinite.cli._scan, stayfinite.cli._doctor
import encodings.utf_16, torch, stayfinite.checkpoint, stayfinite.data  # what nobody may not read from the disk
if os.getuid() == 0:
    os.setuid(65534)
for command, path, name in [argument.split("::") for argument in sys.argv[1:]]:
    result = CliRunner().invoke(main, [command, path])
    assert result.exception is None or isinstance(result.exception, SystemExit), (path, result.exception)
    assert "Traceback" not in result.output, result.output
    assert result.exit_code == 2 and name in result.output, (command, name, result.exit_code, result.output)
"""


def test_files_that_may_not_be_opened(tmp_path: Path) -> None:
    for place in (tmp_path, *tmp_path.parents[:3]):
        if place.owner() == tmp_path.owner() and place != Path("/tmp"):
            place.chmod(0o755)
    wanted: list[str] = []
    for command, names in NAMES.items():
        for name in names:
            path = tmp_path / f"{command}-{name.replace('.', '-')}" / name
            path.parent.mkdir()
            path.write_bytes(b'{"loss": 1.0, "lr": 0.1, "step": 1}\n')
            path.chmod(0)
            wanted.append(f"{command}::{path.parent if command == 'doctor' else path}::{name}")
    done = preloaded.run(
        [sys.executable, "-c", _AS_NOBODY, *wanted], timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
