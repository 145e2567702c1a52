"""Paths at which there is no file to read: named for what they are, exit code 2, and nobody waits for a pipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from stayfinite.cli import main


@pytest.mark.parametrize("command", ["lint", "data", "logs", "scan"])
@pytest.mark.parametrize("ending", [".py", ".yaml", ".jsonl", ".csv", ".npy", ".pt"])
def test_what_is_no_file_is_named_for_what_it_is(command: str, ending: str, tmp_path: Path) -> None:
    pipe, link, none = (tmp_path / f"{name}{ending}" for name in ("pipe", "link", "none"))
    os.mkfifo(pipe)
    link.symlink_to(link)
    for path, words in (
        (pipe, ("pipe", "regular")),
        (link, ("link", "regular", "symbolic")),
        (none, ("no such",)),
    ):
        result = CliRunner().invoke(main, [command, str(path)])
        assert result.exit_code == 2
        said = result.output.replace(str(tmp_path), "").replace(path.name, "")
        wrong_kind = command == "lint" and "neither Python nor a configuration" in said
        assert wrong_kind or any(word in said for word in words), said
        assert "empty" not in said
