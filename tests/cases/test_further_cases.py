"""Further real scripts with a truth.jsonl, where there are any: in STAYFINITE_CASES, or ../shared/cases."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import preloaded

ROOT = Path(__file__).parents[2]
CASES = Path(os.environ.get("STAYFINITE_CASES") or ROOT.parent / "shared" / "cases")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the cases run in forked processes"),
    pytest.mark.skipif(not (CASES / "truth.jsonl").exists(), reason="no further cases here"),
]


def test_further_cases_are_located_and_explained(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [
        sys.executable,
        str(ROOT / "bench" / "accuracy.py"),
        "--cases",
        str(CASES),
        "--json",
        str(output),
    ]
    preloaded.run(command, check=True)
    found = json.loads(output.read_text())
    failing = [result for result in found if result["failing"]]
    assert not [result["script"] for result in found if not result["failing"] and result["errors"]]
    assert sum(result["right_line"] for result in failing) >= 0.95 * len(failing)
    assert sum(result["right_cause"] for result in failing) >= 0.9 * len(failing)
