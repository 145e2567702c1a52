"""A record says whether its run was closed; of one that was not, a reader says so once its process is gone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import preloaded
from report.written_runs import step_line, write_lines
from stayfinite.findings.process_mark import own_mark
from stayfinite.report.html.page import render_run
from stayfinite.report.live import follower as module
from stayfinite.report.live.follower import RunFollower
from stayfinite.report.record.folder import open_folder

SCRIPT = Path(__file__).with_name("ended_training.py")
SAID = "The run ended without closing"


def train(run: Path, steps: int) -> preloaded.Started:
    return preloaded.start(
        [sys.executable, str(SCRIPT), str(run), str(steps)],
    )


def test_a_run_that_ends_closes_its_record_once(tmp_path: Path) -> None:
    with train(tmp_path, 0) as process:
        process.wait()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert (
        [line for line in lines if line.get("event") == "end"] == lines[-1:] == [{"event": "end", "step": 10}]
    )
    follower = RunFollower(tmp_path)
    follower.poll()
    assert follower.fate == "closed"
    page = render_run(open_folder(tmp_path))
    assert SAID not in page and "The run has ended and closed its record" in page


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc tells of processes")
def test_a_run_that_was_killed_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS_SECONDS", 0.0)
    with train(tmp_path, 100_000) as process:
        assert process.stdout is not None and process.stdout.readline() == "training\n"
        follower = RunFollower(tmp_path)
        follower.poll()
        assert follower.fate == ""
        assert SAID not in render_run(open_folder(tmp_path))
        process.kill()
    follower.poll()
    assert follower.fate == "abandoned"
    assert SAID in render_run(open_folder(tmp_path))
    with train(tmp_path, 0) as process:  # it goes on in the same folder, and ends well
        process.wait()
    follower.poll()
    assert follower.fate == "closed"
    assert SAID not in render_run(open_folder(tmp_path))


def test_nothing_is_said_of_a_process_elsewhere(tmp_path: Path) -> None:
    start = {
        "event": "start",
        "step": 0,
        "environment": {},
        "process": {**own_mark(), "pid": 1, "boot": "another"},
    }
    write_lines(tmp_path, [start, step_line(0)])
    contents = open_folder(tmp_path)
    assert contents.record is not None and not contents.record.was_abandoned
    assert SAID not in render_run(contents)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_a_fork_that_ends_does_not_end_the_run(tmp_path: Path) -> None:
    code = (
        "import os, sys, torch; from stayfinite import Guard; torch.set_num_threads(1); model = torch.nn.Linear(2, 1)\n"
        "guard = Guard(model, torch.optim.SGD(model.parameters(), 1e-3), run_dir=sys.argv[1], quiet=True)\n"
        "guard.step(lambda: model(torch.ones(1, 2)).sum())\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "guard.step(lambda: model(torch.ones(1, 2)).sum())\n"
    )
    preloaded.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    ends = [number for number, line in enumerate(lines) if line.get("event") == "end"]
    assert ends == [len(lines) - 1] and lines[-1]["step"] == 2
