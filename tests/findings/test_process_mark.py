"""A process is known again by its mark while it lives; a dead one is told from one that cannot be seen from here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stayfinite.findings.process_mark import lives, own_mark

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc tells of processes")
MARK = (
    "import json, sys; from stayfinite.findings.process_mark import own_mark; "
    "print(json.dumps(own_mark()), flush=True)"
)


def test_it_lives_until_it_is_killed() -> None:
    command = [sys.executable, "-c", MARK + "; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mark = json.loads(process.stdout.readline())
        assert mark["pid"] == process.pid and lives(mark) is True
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked how it ended
        assert lives(mark) is False
        process.wait()
        assert lives(mark) is False


def test_another_process_with_its_number_is_not_taken_for_it() -> None:
    mark = own_mark()
    assert lives(mark) is True
    began = mark["began"]
    assert isinstance(began, int)
    assert lives({**mark, "began": began - 1}) is False


@pytest.mark.parametrize("other", [{"boot": "of another machine"}, {"namespace": 1}])
def test_of_other_machines_and_containers_nothing_is_said(other: dict[str, object]) -> None:
    assert lives({**own_mark(), **other}) is None


@pytest.mark.parametrize(
    "mark", [{}, {"pid": "1"}, {"pid": -1, "began": 1}, {"pid": True, "began": 2}, {"pid": 1}]
)
def test_a_mark_that_is_none_says_nothing(mark: dict[str, object]) -> None:
    assert lives({**mark}) is None
