"""kill -9 at any moment while saving: the newest checkpoint that exists is whole, finite and can be gone on from."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from guard.saving_nursery import build
from stayfinite.checkpoint import verify
from stayfinite.recover.checkpoint import numbered, read

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")


@pytest.fixture
def nursery() -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("saving_nursery.py")
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    yield process
    process.communicate()


def kill_after(nursery: subprocess.Popen[str], folder: Path, seconds: float, *, in_a_write: bool) -> None:
    """Start a child, let it save for so long, kill it; then and there, or as soon as a file is half written."""
    assert nursery.stdin is not None and nursery.stdout is not None
    nursery.stdin.write(f"{folder}\n")
    said = {nursery.stdout.readline().strip() for _ in range(2)}
    assert "saving" in said
    (child,) = (int(word) for word in said - {"saving"})
    time.sleep(seconds)
    patience = time.monotonic() + 5
    while in_a_write and time.monotonic() < patience and not half_written(folder):
        pass
    os.kill(child, signal.SIGKILL)
    assert nursery.stdout.readline().strip() == "ended"


def half_written(folder: Path) -> list[Path]:
    return list((folder / "snapshots").glob(".*.tmp"))


@pytest.mark.parametrize("kills", [10, pytest.param(40, marks=pytest.mark.long)])
def test_every_kill_leaves_a_good_checkpoint(
    kills: int, tmp_path: Path, nursery: subprocess.Popen[str]
) -> None:
    rng = random.Random(20)
    snapshots = tmp_path / "snapshots"
    newest_step, in_the_middle, longest = 0, 0, 0.6
    for number in range(kills):
        for left_over in half_written(tmp_path):
            left_over.unlink()
        kill_after(nursery, tmp_path, rng.uniform(0.05, longest), in_a_write=number % 4 == 3)
        for path in numbered(snapshots):
            payload = read(path)
            assert verify(payload).bad_tensors == []
            assert payload["step"] == int(path.stem.removeprefix("step-"))
        checkpoints = numbered(snapshots)
        if newest_step:
            assert checkpoints, "a checkpoint that was there is gone"
        if checkpoints:
            step = read(checkpoints[-1])["step"]
            assert step >= newest_step
            slow, newest_step = step <= newest_step + 1, step
        else:
            slow = True
        if slow:  # a busy machine needs more time
            longest *= 1.5
        in_the_middle += bool(half_written(tmp_path))
    assert newest_step > kills, "the run gets on in spite of the kills"
    assert in_the_middle, "some kills hit the middle of a write"

    guard = build(tmp_path)
    guard.restore(numbered(snapshots)[-1])
    assert guard.step_count == newest_step
    model = guard.state.models[""]
    assert guard.step(lambda: model(torch.randn(2, 600)).square().mean()).applied
    guard.close()


def test_left_over_temporary_files_do_not_disturb(tmp_path: Path) -> None:
    guard = build(tmp_path, save_every=2, keep=2)
    model = guard.state.models[""]
    snapshots = tmp_path / "snapshots"
    snapshots.mkdir(parents=True)
    junk = snapshots / ".step-00000002.pt.1.tmp"
    junk.write_bytes(b"half a file")
    for _ in range(9):
        guard.step(lambda: model(torch.randn(2, 600)).square().mean())
    assert [path.name for path in numbered(snapshots)] == ["step-00000006.pt", "step-00000008.pt"]
    guard.restore(numbered(snapshots)[-1])
    assert guard.step_count == 8 and junk.exists()
    guard.close()
