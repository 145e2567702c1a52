"""Locating a failure does nothing of what the script does a second time. `bench/side_effects.py` has all scripts."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

import preloaded
from stayfinite.sandbox import support

sys.path.insert(0, str(Path(__file__).parent))

from side_effects.table import SCRIPTS, Script
from side_effects.trial import differences, tried

# Many at once, for each start of a script takes seconds. The names that these use do not meet.
TOGETHER = (
    "print only", "append to a log", "rotation of files", "rotation of folders",
    "rmtree at start", "needs what it deletes", "symbolic links", "sqlite that was there", "numpy memmap r+",
    "safetensors over a file", "best model", "refuses to run twice", "counter in a file", "shell append", "udp",
    "network that may fail", "loader workers", "environment", "stdout redirected", "shared memory file",
    "configuration rewritten", "background writer", "atexit", "signal to another",
)  # fmt: skip


def together() -> Script:
    chosen = [script for script in SCRIPTS if script.name in TOGETHER]
    assert len(chosen) == len(TOGETHER)
    files: dict[str, str] = {}
    for script in chosen:
        assert not files.keys() & script.files.keys(), script.name
        files |= script.files
    parts = {
        part: "\n".join(textwrap.dedent(getattr(script, part)).strip() for script in chosen)
        for part in ("before", "each", "after")
    }
    return Script("together", files=files, **parts)


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    if support.sandbox().kind != "namespaces":
        pytest.skip(support.sandbox().reason)


def test_every_row_is_a_script_of_its_own() -> None:
    assert len(SCRIPTS) >= 55 and len({script.name for script in SCRIPTS}) == len(SCRIPTS)
    for script in SCRIPTS:
        compile(script.source, script.name, "exec")


def test_nothing_happens_twice_and_the_failure_is_located(tmp_path: Path) -> None:
    script = together()
    off = tried(script, tmp_path, "--locate", "off", run=preloaded.run)
    on = tried(script, tmp_path, run=preloaded.run)
    assert on.code == 0, on.err
    assert differences(off, on) == []
    assert on.messages["signals"] == 1 and on.messages["udp b'step'"] == 8
    assert on.lines == [script.born], on.err
    assert [incident["reproduced"] for incident in on.incidents] == [True]
    assert [incident["not_located"] for incident in off.incidents] == ["--locate off"]


def test_what_the_sandbox_withholds_is_said(tmp_path: Path) -> None:
    (script,) = (script for script in SCRIPTS if script.name == "tcp")
    on = tried(script, tmp_path, run=preloaded.run)
    assert on.messages == {"tcp b'step'": 8}
    (incident,) = on.incidents
    assert incident["reproduced"] is None and incident["birth"] is None
    line = next(n for n, text in enumerate(script.source.splitlines(), 1) if "create_connection" in text)
    assert incident["not_located"].startswith(
        f"the second run ended with ConnectionRefusedError at train.py:{line}"
    )
    assert not [finding for finding in incident["findings"] if finding["code"] == "RUN013"]


@pytest.mark.long  # what Landlock refuses: test_process.py
def test_landlock_refuses_and_says_so(tmp_path: Path) -> None:
    if not support.allows("landlock"):
        pytest.skip("no Landlock")
    script = Script("log", files={"log.txt": "a"}, each="open('log.txt', 'a').write('x')")
    on = tried(script, tmp_path, sandbox="landlock", run=preloaded.run)
    (incident,) = on.incidents
    assert "PermissionError at train.py:17" in incident["not_located"] and incident["reproduced"] is None
    on = tried(Script("quiet"), tmp_path, sandbox="landlock", run=preloaded.run)
    assert on.lines == [13]
