"""Checkpoint files: whole or not there, checked before use, never executed, never the last good one deleted."""

from __future__ import annotations

import os
import pickle
import random
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import preloaded
from stayfinite.recover import CheckpointError
from stayfinite.recover.checkpoint import FORMAT, numbered, read, rotate, step_path, write


def payload(value: float = 1.0) -> dict[str, Any]:
    return {"stayfinite": FORMAT, "model": {"w": torch.full((300,), value)}, "step": 3, "text": "x"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000003.pt"
    write(path, payload())
    return path


def test_what_is_written_is_read(saved: Path) -> None:
    back = read(saved)
    assert torch.equal(back["model"]["w"], payload()["model"]["w"])
    assert {key: back[key] for key in ("step", "text", "stayfinite")} == {
        "step": 3,
        "text": "x",
        "stayfinite": 1,
    }
    assert os.listdir(saved.parent) == [saved.name], "no temporary file is left"  # noqa: PTH208


def test_it_is_an_ordinary_torch_file(saved: Path) -> None:
    assert torch.equal(torch.load(saved, weights_only=True)["model"]["w"], torch.ones(300))


def test_folders_are_made_and_old_files_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.pt"
    write(path, payload(1.0))
    write(path, payload(2.0))
    assert float(read(path)["model"]["w"][0]) == 2.0


def test_damage_to_any_byte_of_the_numbers_is_found(saved: Path) -> None:
    good = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive:
        (member,) = [info for info in archive.infolist() if info.filename.endswith("data/0")]
    start = good.find(np.ones(300, dtype=np.float32).tobytes())
    assert start > 0 and member.file_size == 1200
    for offset in (0, 1, 599, 1198, 1199):
        damaged = bytearray(good)
        damaged[start + offset] ^= 0x10
        saved.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"checksum of .*data/0 does not match"):
            read(saved)


def test_any_damage_is_either_harmless_or_refused(saved: Path) -> None:
    """A bit flipped anywhere: the numbers read are right, or nothing is read and the error is ours."""
    good, rng = saved.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(good)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        saved.write_bytes(damaged)
        try:
            back = read(saved)
        except CheckpointError:
            refused += 1
        else:
            assert torch.equal(back["model"]["w"], torch.ones(300)) and back["step"] == 3
    assert refused > 30


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(saved: Path, share: float) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError, match=r"not a whole checkpoint.*Restore an older one"):
        read(saved)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*x\.pt"):
        read(path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        read(tmp_path)
    path.write_text("epoch,loss\n1,0.5\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="another kind of file"):
        read(path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(CheckpointError, match=r"not written by guard\.save.*torch\.load"):
        read(path)
    torch.save([1, 2], path)
    with pytest.raises(CheckpointError, match=r"not written by guard\.save"):
        read(path)
    torch.save({"stayfinite": FORMAT + 1}, path)
    with pytest.raises(CheckpointError, match=r"version 1"):
        read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match="zip but no checkpoint"):
        read(path)


class Canary:
    """Unpickling it creates a file: proof that a pickle was executed."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def test_a_hostile_pickle_never_runs(tmp_path: Path) -> None:
    sang = tmp_path / "canary"
    path = tmp_path / "evil.pt"
    torch.save({**payload(), "extra": Canary(sang)}, path)
    with pytest.raises(CheckpointError, match=r"refused: it holds \w+\.system"):
        read(path)
    path.write_bytes(pickle.dumps({**payload(), "extra": Canary(sang)}))
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        read(path)
    assert not sang.exists()
    pickle.loads(path.read_bytes())
    assert sang.exists(), "the canary does sing where pickles are executed"


@pytest.mark.parametrize(
    "value", [Path("a"), random.Random(0), {1, 2}, np.ones(2)], ids=["path", "rng", "set", "array"]
)
def test_what_could_not_be_read_back_is_not_written(saved: Path, value: Any) -> None:
    before = saved.read_bytes()
    try:
        write(saved, {**payload(2.0), "extra": value})
    except CheckpointError as error:
        assert "was not written" in str(error) and "plain Python values" in str(error)
        assert "the state holds GLOBAL" not in str(error), "the object is named, not the pickle's word for it"
        assert saved.read_bytes() == before
    else:
        assert float(read(saved)["model"]["w"][0]) == 2.0
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_file_without_checksums_is_not_written_even_if_torch_is_told_so(saved: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        write(saved, payload(3.0))
        assert torch.serialization.get_crc32_options() is False
    finally:
        torch.serialization.set_crc32_options(True)
    assert float(read(saved)["model"]["w"][0]) == 3.0


def test_a_missing_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"could not write the checkpoint.*choose a writable directory"):
        write(tmp_path / "file" / "x.pt", payload())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_a_full_disk_leaves_the_old_file(saved: Path) -> None:
    before = saved.read_bytes()
    temporary = saved.with_name(f".{saved.name}.{os.getpid()}.tmp")
    temporary.symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"No space left on device\. Free space"):
        write(saved, payload(2.0))
    assert saved.read_bytes() == before and not temporary.is_symlink()


FILE_TOO_LARGE = """
import resource, signal, sys, torch
from pathlib import Path
from stayfinite.recover import CheckpointError
from stayfinite.recover.checkpoint import FORMAT, read, write
path = Path(sys.argv[1])
write(path, {"stayfinite": FORMAT, "w": torch.ones(10)})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write(path, {"stayfinite": FORMAT, "w": torch.ones(100_000)})
except CheckpointError as error:
    print(error)
print(len(read(path)["w"]), [p.name for p in path.parent.iterdir()])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
def test_a_quota_that_ends_in_the_middle_of_a_file(tmp_path: Path) -> None:
    child = preloaded.run(
        [sys.executable, "-c", FILE_TOO_LARGE, str(tmp_path / "x.pt")],
    )
    said, after = child.stdout.splitlines()
    assert "could not write the checkpoint" in said and "untouched" in said
    assert after == "10 ['x.pt']", child.stderr


def test_rotation_keeps_the_newest_and_the_last_good(tmp_path: Path) -> None:
    paths = [step_path(tmp_path, step) for step in (5, 100, 20, 3, 1000)]
    for path in paths:
        path.write_bytes(b"x")
    (tmp_path / "best.pt").write_bytes(b"x")
    (tmp_path / "step-final.pt").write_bytes(b"x")
    (tmp_path / f".{paths[0].name}.77.tmp").write_bytes(b"x")
    assert [path.name for path in numbered(tmp_path)] == [
        f"step-{step:08d}.pt" for step in (3, 5, 20, 100, 1000)
    ]
    gone = rotate(tmp_path, 2, last_good=paths[0])
    assert [path.name for path in gone] == ["step-00000003.pt", "step-00000020.pt"]
    assert [path.name for path in numbered(tmp_path)] == [f"step-{step:08d}.pt" for step in (5, 100, 1000)]
    assert (tmp_path / "best.pt").exists() and (tmp_path / "step-final.pt").exists()
    assert rotate(tmp_path, 0, last_good=None) == [], "0 keeps everything"
    assert rotate(tmp_path / "missing", 2, last_good=None) == []
