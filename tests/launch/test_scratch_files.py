"""A second run sees the disk as the first found it, and leaves it as the first left it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stayfinite.launch.patches import Patches
from stayfinite.launch.scratch_files import MadeFiles, ScratchFiles


@pytest.fixture
def patches() -> Iterator[Patches]:
    made = Patches()
    yield made
    made.undo()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file that was there before."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "old.txt").write_text("old")
    return place


def script(place: Path) -> list[str]:
    """Writes as trainings do, and says what it sees."""
    seen = [
        f"resumes: {(place / 'out' / 'last.pt').exists()}",
        f"finds {sorted(p.name for p in place.iterdir())}",
    ]
    (place / "out").mkdir(exist_ok=True)
    torch.save({"step": len(seen)}, place / "out" / "part.pt")
    (place / "out" / "part.pt").replace(place / "out" / "last.pt")
    with (place / "old.txt").open("a") as log:
        log.write(", longer")
    seen.append(f"left {sorted(p.name for p in (place / 'out').iterdir())}")
    seen.append(f"loads {torch.load(place / 'out' / 'last.pt')}, {(place / 'old.txt').stat().st_size} bytes")
    return seen


def test_the_second_run_sees_what_the_first_saw(place: Path, tmp_path: Path, patches: Patches) -> None:
    made = MadeFiles()
    made.install(patches)
    first = script(place)
    patches.undo()
    assert first[0] == "resumes: False"
    (place / "old.txt").write_text("old")  # the first run's own copy of it is not kept
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    ScratchFiles(tmp_path / "scratch", made.paths).install(patches)
    second = script(place)
    patches.undo()
    assert second == first
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_what_was_removed_is_gone_only_for_the_script(place: Path, tmp_path: Path, patches: Patches) -> None:
    ScratchFiles(tmp_path / "scratch").install(patches)
    (place / "old.txt").unlink()
    assert not (place / "old.txt").exists()
    assert list(place.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        (place / "old.txt").unlink()
    with pytest.raises(FileNotFoundError):
        (place / "old.txt").read_text()
    (place / "old.txt").write_text("new")
    assert (place / "old.txt").read_text() == "new"
    patches.undo()
    assert (place / "old.txt").read_text() == "old"


def test_a_temporary_folder_of_the_run_is_its_own(tmp_path: Path, patches: Patches) -> None:
    ScratchFiles(tmp_path / "scratch").install(patches)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        path.write_text("1,2")
        patches.undo()
        assert path.read_text() == "1,2"  # really there, for readers that do not use open()
    assert not Path(folder).exists()


def test_writing_where_no_folder_is_fails_as_ever(tmp_path: Path, patches: Patches) -> None:
    ScratchFiles(tmp_path / "scratch").install(patches)
    with pytest.raises(FileNotFoundError):
        (tmp_path / "nowhere" / "file.txt").write_text("")
