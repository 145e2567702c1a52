"""A run that was stopped, saved and restored in another process ends in the same bits as one that never stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import preloaded
from recover.resumable_training import train

SCRIPT = Path(__file__).with_name("resumable_training.py")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Weights, moments, averages and the next random numbers after 40 steps in one go (13 batches an epoch)."""
    folder = tmp_path_factory.mktemp("straight")
    train(folder, 40, None)
    return (folder / "end.bin").read_bytes()


def test_bit_identical_in_a_new_process(tmp_path: Path, straight: bytes) -> None:
    train(tmp_path / "first", 20, None)
    preloaded.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "second"), "40", str(tmp_path / "first" / "end.pt")],
        check=True,
    )
    assert (tmp_path / "second" / "end.bin").read_bytes() == straight


def test_bit_identical_through_many_stops(tmp_path: Path, straight: bytes) -> None:
    """In the middle of an epoch, at its first batch and at its last."""
    checkpoint = None
    for stop in (1, 13, 14, 27, 40):
        train(tmp_path / str(stop), stop, checkpoint)
        checkpoint = tmp_path / str(stop) / "end.pt"
    assert (tmp_path / "40" / "end.bin").read_bytes() == straight


def test_the_check_can_fail(tmp_path: Path, straight: bytes) -> None:
    train(tmp_path, 39, None)
    assert (tmp_path / "end.bin").read_bytes() != straight


def test_the_record_goes_on_counting(tmp_path: Path) -> None:
    train(tmp_path / "first", 5, None)
    train(tmp_path / "second", 9, tmp_path / "first" / "end.pt")
    lines = [json.loads(line) for line in (tmp_path / "second" / "run.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "event" not in line] == [5, 6, 7, 8]
    events = [line["event"] for line in lines if line.get("event", "vitals") != "vitals"]
    assert events == ["start", "restore", "end"]
