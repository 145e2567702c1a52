"""A process of the server is to what it runs as one that python started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded

TOLD = """
import os, sys
print(__name__, sys.argv, os.getcwd(), sys.path, os.environ.get("TOLD"), sys.stdin.read(), globals().get("__file__"))
print(sorted(os.environ), sys.stdout.isatty(), sys.stdout.encoding, sys.orig_argv, file=sys.stderr)
"""
ENDS = {
    "well": "print('said')",
    "error": "def fails():\n    raise ValueError('bad')\nfails()",
    "code": "raise SystemExit(7)",
    "sentence": "raise SystemExit('no')",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "at exit": "import atexit; atexit.register(print, 'last')",
    "a thread": "import threading, time; threading.Timer(0.2, print, ['late']).start()",
    "own hook": "import sys; sys.excepthook = lambda *error: print(error[0].__name__); 1 / 0",
}


def check_same(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "TOLD": "yes"}
    own = preloaded.run(command, cwd=folder, env=environment, timeout=60)
    python = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (own.returncode, own.stdout, own.stderr) == (python.returncode, python.stdout, python.stderr)


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_python_ends(tmp_path: Path, end: str) -> None:
    (tmp_path / "script.py").write_text(ENDS[end])
    check_same([sys.executable, "script.py"], tmp_path)


@pytest.mark.parametrize("way", ["file", "module", "code"])
def test_it_is_told_what_python_tells(tmp_path: Path, way: str) -> None:
    (tmp_path / "script.py").write_text(TOLD)
    what = {"file": ["script.py"], "module": ["-m", "script"], "code": ["-c", TOLD]}[way]
    check_same([sys.executable, *what, "a", "--b"], tmp_path)


def test_signals_reach_it(tmp_path: Path) -> None:
    code = "import time; print('ready', flush=True); time.sleep(60)"
    process = preloaded.start([sys.executable, "-c", code])
    assert process.stdout.readline() == "ready\n" and process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.wait() == -signal.SIGINT and said.endswith("KeyboardInterrupt\n")
