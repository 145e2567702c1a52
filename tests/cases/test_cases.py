"""Real scripts, unchanged, through `stayfinite run`: right line and cause on those that fail, silence on the healthy.

The markers in the scripts are the truth: `# birth` behind a line where the value may be said to be born, `# causes:`
in the first lines, `# exit:` for the script's own exit code, `# samples:` for the samples that are bad.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import preloaded

HERE = Path(__file__).parent
BENCH = HERE.parents[1] / "bench" / "accuracy.py"
FAILING, HEALTHY = sorted((HERE / "failing").glob("*.py")), sorted((HERE / "healthy").glob("*.py"))
_PER_CAUSE = 1
"""How many failing scripts of each cause are part of `make test`; all of them are part of `make test-long`, and so is
every other healthy script."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the cases run in forked processes")


def marked(text: str, name: str) -> list[str]:
    found = re.search(rf"^# {name}: (.*)$", text, re.MULTILINE)
    return found.group(1).split() if found else []


def truth_of(path: Path, *, control: bool) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# birth")]
    kind = "control" if control else "nonfinite"
    return {"id": path.stem, "kind": kind, "birth_lines": lines, "accept_taxonomy": marked(text, "causes")}


def first_of_their_causes() -> list[Path]:
    taken: Counter[str] = Counter()
    chosen = []
    for path in FAILING:
        cause = (marked(path.read_text(encoding="utf-8"), "causes") or [path.stem])[0]
        taken[cause] += 1
        if taken[cause] <= _PER_CAUSE:
            chosen.append(path)
    return chosen


QUICK = first_of_their_causes()
FURTHER = [path for path in FAILING if path not in QUICK]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return run_all(tmp_path_factory.mktemp("own-cases"), QUICK, HEALTHY[::2])


@pytest.fixture(scope="module")
def further_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return run_all(tmp_path_factory.mktemp("further-own-cases"), FURTHER, HEALTHY[1::2])


def run_all(folder: Path, failing: list[Path], healthy: list[Path]) -> dict[str, dict[str, Any]]:
    truths = [truth_of(path, control=False) for path in failing]
    truths += [truth_of(path, control=True) for path in healthy]
    for path in (*failing, *healthy):
        shutil.copy(path, folder)
    (folder / "truth.jsonl").write_text("\n".join(json.dumps(truth) for truth in truths), encoding="utf-8")
    written = folder / "results.json"
    command = [sys.executable, str(BENCH), "--cases", str(folder), "--json", str(written)]
    done = preloaded.run(command)
    if not written.exists():
        pytest.fail(done.stdout + done.stderr)
    return {result["script"]: result for result in json.loads(written.read_text())}


@pytest.mark.parametrize("path", QUICK, ids=lambda path: path.stem)
def test_failing_script_is_located_and_explained(path: Path, results: dict[str, dict[str, Any]]) -> None:
    check_failing(path, results[path.name])


@pytest.mark.long
@pytest.mark.parametrize("path", FURTHER, ids=lambda path: path.stem)
def test_further_failing_script_is_located_and_explained(
    path: Path, further_results: dict[str, dict[str, Any]]
) -> None:
    check_failing(path, further_results[path.name])


def check_failing(path: Path, result: dict[str, Any]) -> None:
    text = path.read_text(encoding="utf-8")
    assert result["problem"] is None
    assert result["right_line"], f"named line {result['lines']}"
    assert result["right_cause"], f"named {result['causes']}"
    assert result["exit_code"] == int((marked(text, "exit") or ["0"])[0])
    assert [str(sample) for sample in result["samples"]] == marked(text, "samples") or not marked(
        text, "samples"
    )


@pytest.mark.parametrize("path", HEALTHY[::2], ids=lambda path: path.stem)
def test_healthy_script_is_not_accused(path: Path, results: dict[str, dict[str, Any]]) -> None:
    check_healthy(results[path.name])


@pytest.mark.long
@pytest.mark.parametrize("path", HEALTHY[1::2], ids=lambda path: path.stem)
def test_further_healthy_script_is_not_accused(
    path: Path, further_results: dict[str, dict[str, Any]]
) -> None:
    check_healthy(further_results[path.name])


def check_healthy(result: dict[str, Any]) -> None:
    assert result["problem"] is None
    assert result["errors"] == []
    assert result["exit_code"] == 0
