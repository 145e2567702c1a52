"""Real scripts, unchanged, through `stayfinite run`: right line and cause on those that fail, silence on the healthy.

The markers in the scripts are the truth: `# birth` behind a line where the value may be said to be born, `# causes:`
in the first lines, `# exit:` for the script's own exit code, `# samples:` for the samples that are bad.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BENCH = HERE.parents[1] / "bench" / "accuracy.py"
FAILING, HEALTHY = sorted((HERE / "failing").glob("*.py")), sorted((HERE / "healthy").glob("*.py"))

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the cases run in forked processes")


def marked(text: str, name: str) -> list[str]:
    found = re.search(rf"^# {name}: (.*)$", text, re.MULTILINE)
    return found.group(1).split() if found else []


def truth_of(path: Path, *, control: bool) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# birth")]
    kind = "control" if control else "nonfinite"
    return {"id": path.stem, "kind": kind, "birth_lines": lines, "accept_taxonomy": marked(text, "causes")}


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, dict[str, Any]]:
    """All scripts once, however many workers the tests run in."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "own-cases"
    written = folder / "results.json"
    try:
        folder.mkdir()
    except FileExistsError:  # another worker runs them
        while not written.exists():
            time.sleep(0.5)
        return by_script(written)
    truths = [truth_of(path, control=False) for path in FAILING]
    truths += [truth_of(path, control=True) for path in HEALTHY]
    for path in (*FAILING, *HEALTHY):
        shutil.copy(path, folder)
    (folder / "truth.jsonl").write_text("\n".join(json.dumps(truth) for truth in truths), encoding="utf-8")
    partial = folder / "results.partial"
    command = [sys.executable, str(BENCH), "--cases", str(folder), "--json", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not partial.exists():
        written.write_text("[]")
        pytest.fail(done.stdout + done.stderr)
    partial.rename(written)
    return by_script(written)


def by_script(path: Path) -> dict[str, dict[str, Any]]:
    return {result["script"]: result for result in json.loads(path.read_text())}


@pytest.mark.parametrize("path", FAILING, ids=lambda path: path.stem)
def test_failing_script_is_located_and_explained(path: Path, results: dict[str, dict[str, Any]]) -> None:
    result, text = results[path.name], path.read_text(encoding="utf-8")
    assert result["problem"] is None
    assert result["right_line"], f"named line {result['lines']}"
    assert result["right_cause"], f"named {result['causes']}"
    assert result["exit_code"] == int((marked(text, "exit") or ["0"])[0])
    assert [str(sample) for sample in result["samples"]] == marked(text, "samples") or not marked(
        text, "samples"
    )


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_healthy_script_is_not_accused(path: Path, results: dict[str, dict[str, Any]]) -> None:
    result = results[path.name]
    assert result["problem"] is None
    assert result["errors"] == []
    assert result["exit_code"] == 0
