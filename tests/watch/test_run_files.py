"""What a run leaves on disk, and that one without a folder leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stayfinite.findings import Incident
from stayfinite.watch.run_files import RunFiles


def test_a_run_without_a_folder_writes_nothing_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = RunFiles(None, torch.device("cpu"), [])
    filed = files.incident(Incident(3, "forward", "loss"), goes_on=False)
    files.event("warning", 3, what="something")
    files.close()
    assert (filed.times, files.folder_of(filed)) == (1, None)
    assert list(tmp_path.iterdir()) == []


def test_incidents_are_numbered_after_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "incidents" / "0007").mkdir(parents=True)
    files = RunFiles(tmp_path, torch.device("cpu"), [])
    folder = files.folder_of(files.incident(Incident(3, "forward", "loss"), goes_on=False))
    files.close()
    assert folder == tmp_path / "incidents" / "0008" and (folder / "incident.json").is_file()
