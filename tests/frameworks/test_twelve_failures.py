"""Twelve failing models: inside a framework the same line and the same cause are named as in a plain loop."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from failing import FAILING, line_of
from harness import FRAMEWORKS, Trained, guarded


@cache
def _in_a_plain_loop(case: str, folder: Path) -> Trained:
    return guarded("plain", case, folder)


def _first(trained: Trained) -> dict[str, Any]:
    located = [incident for incident in trained.incidents if incident["birth"]]
    incident = located[0]
    birth = incident["birth"] or {}
    return {
        "file": Path(birth.get("file") or "").name,
        "line": birth.get("line"),
        "op": birth.get("op"),
        "phase": incident["phase"],
        "trigger": incident["trigger"],
        "cause": incident["findings"][0]["cause"],
    }


@pytest.mark.parametrize("case", FAILING)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_same_line_and_cause(
    framework: str, case: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain = _first(_in_a_plain_loop(case, tmp_path_factory.getbasetemp() / "plain" / case))
    trained = guarded(framework, case, tmp_path)
    found = _first(trained)
    if case == "nan_batch":  # the line is that of the user's code to which the batch was given
        assert (
            {found.pop("file"), plain.pop("file")} == {"train.py"} and found.pop("line") and plain.pop("line")
        )
    else:
        assert plain["line"] == line_of(case)
    assert found == plain
    if case == "poisoned_start":
        assert trained.stopped is not None
    elif trained.net is not None:
        assert all(torch.isfinite(value).all() for value in trained.weights().values())
