"""`stayfinite logs` as a user runs it: exit codes, formats, plots, comparing, and following a file that grows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logs.written import FAILS, RECORDS, WRITERS, json_lines, record
from stayfinite.cli import main

HEALTHY = [record(step, fails=10_000) for step in range(200)]


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["logs", *map(str, arguments)])


@pytest.mark.parametrize("form", WRITERS)
def test_a_failed_run_exits_with_one(form: str, tmp_path: Path) -> None:
    name, write = WRITERS[form]
    result = run(write(tmp_path / name))
    assert result.exit_code == 1, result.output
    assert "LOG001" in result.output and f"step {FAILS}" in result.output and "LOG003" in result.output


def test_a_healthy_run_exits_with_zero(tmp_path: Path) -> None:
    result = run(json_lines(tmp_path / "a.jsonl", HEALTHY))
    assert result.exit_code == 0 and "nothing found" in result.output


def test_json_and_sarif_and_github(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "a.jsonl")
    data = json.loads(run(path, "--format", "json").stdout)
    assert data["schema"] == 1 and data["findings"][0]["code"] == "LOG001"
    assert data["logs"][0]["first_nonfinite"]["step"] == FAILS
    sarif = json.loads(run(path, "--format", "sarif").stdout)
    place = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["region"]["startLine"] == FAILS + 1
    assert run(path, "--format", "github").stdout.startswith("::error ")
    assert run(path, "--ignore", "LOG").exit_code == 0
    assert "LOG003" not in run(path, "--select", "LOG001").output
    assert (
        run(path, "--output", tmp_path / "out.txt").exit_code == 1
        and "LOG001" in (tmp_path / "out.txt").read_text()
    )


def test_bad_input_is_named_and_passed_over(tmp_path: Path) -> None:
    good = json_lines(tmp_path / "a.jsonl", HEALTHY)
    (tmp_path / "b.log").write_bytes(b"\x00\x01" * 500)
    assert run(tmp_path / "none.log").exit_code == 2
    only = run(tmp_path / "b.log")
    assert only.exit_code == 2 and "not a log" in only.output
    both = run(good, tmp_path / "b.log")
    assert both.exit_code == 0 and "not a log" in both.output
    (tmp_path / "loop").symlink_to(tmp_path)
    folder = run(tmp_path)
    assert folder.exit_code == 0 and "passed over" in folder.output
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty").exit_code == 2


def test_wrong_usage() -> None:
    for arguments in (
        ["x", "--compare"],
        ["x", "y", "--follow"],
        ["x", "--idle", "1"],
        ["x", "--plot", "a.gif"],
    ):
        assert run(*arguments).exit_code == 2


def test_a_page_that_needs_no_network(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    hostile = [{**one, "loss/<script>alert(1)</script>": 1.0} for one in RECORDS]
    assert run(json_lines(tmp_path / "a.jsonl", hostile), "--plot", page).exit_code == 1
    text = page.read_text()
    assert "<script>" not in text and "http" not in text and "src=" not in text
    assert text.count("<svg") >= 3 and "log axis" in text and "not finite" in text and "LOG001" in text


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.png"
    run(json_lines(tmp_path / "a.jsonl"), "--plot", picture)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_picture_without_matplotlib_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "import sys\nclass No:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'matplotlib': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest)\n"
        f"from stayfinite.cli import main; main(['logs', {str(json_lines(tmp_path / 'a.jsonl'))!r}, '--plot', 'x.png'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "stayfinite[plot]" in done.stderr and "Traceback" not in done.stderr


def test_a_chart_shows_what_is_not_finite(tmp_path: Path) -> None:
    output = run(json_lines(tmp_path / "a.jsonl"), "--chart").output
    assert "x" * 5 in output and "loss (" in output and "grad_norm (log)" in output
    assert "! first not finite" in output


def test_torch_is_not_needed(tmp_path: Path) -> None:
    code = (
        "import sys; from stayfinite.cli import main\n"
        f"try: main(['logs', {str(json_lines(tmp_path / 'a.jsonl'))!r}])\n"
        "except SystemExit as end: assert end.code == 1\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_where_two_runs_part(tmp_path: Path) -> None:
    other = [{**one, "loss": one["loss"] * (1 if one["step"] < 60 else 1.5), "lr": 1e-3} for one in HEALTHY]
    a, b = json_lines(tmp_path / "a.jsonl", HEALTHY), json_lines(tmp_path / "b.jsonl", other)
    result = run("--compare", a, b)
    assert result.exit_code == 0 and "they part at step 60, first in loss" in result.output
    data = json.loads(run("--compare", a, b, "--format", "json").stdout)
    rows = {row["series"]: row for row in data["compare"]}
    assert rows["loss"]["apart"][0] == 60 and rows["lr"]["first"] is None
    assert "agree" in run("--compare", a, a).output
    fails = json_lines(tmp_path / "c.jsonl")
    assert f"they part at step {FAILS - 20 + 1}" in run("--compare", a, fails).output


class Followed:
    """`stayfinite logs --follow` in a process of its own, whose output goes to a file."""

    def __init__(self, path: Path, *more: str) -> None:
        command = [sys.executable, "-m", "stayfinite", "logs", "--follow", str(path), *more]
        self._output = path.with_name("output.txt")
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with self._output.open("w") as handle:
            self.process = subprocess.Popen(command, stdout=handle, stderr=subprocess.STDOUT, env=environment)

    @property
    def text(self) -> str:
        return self._output.read_text()

    def wait_for(self, words: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while words not in self.text:
            if time.monotonic() > end or self.process.poll() is not None:
                self.process.kill()
                self.process.wait()
                raise AssertionError(self.text)
            time.sleep(0.05)

    def finish(self) -> int:
        return self.process.wait(20)


def test_following_a_run_until_it_goes_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    followed = Followed(path)
    followed.wait_for("waiting for")
    with path.open("w") as handle:
        for one in HEALTHY[:50]:
            handle.write(json.dumps(one) + "\n")
        handle.flush()
        followed.wait_for("step 49")
        half = json.dumps(HEALTHY[50])
        handle.write(half[:20])
        handle.flush()
        time.sleep(0.4)
        handle.write(half[20:] + "\n")
        handle.flush()
        followed.wait_for("step 50")
    path.rename(tmp_path / "a.jsonl.1")  # a rotation
    with path.open("w") as handle:
        handle.write(json.dumps(HEALTHY[51]) + "\n")
        handle.flush()
        followed.wait_for("step 51")
    with path.open("w") as handle:  # a truncation
        handle.write(json.dumps({"step": 52, "loss": 1}) + "\n")
        handle.flush()
        followed.wait_for("step 52")
        handle.write(json.dumps({"step": 53, "loss": float("nan"), "grad_norm": 3.0}) + "\n")
        handle.flush()
        assert followed.finish() == 1
    assert "LOG001" in followed.text and "was replaced" in followed.text and "was truncated" in followed.text


def test_ctrl_c_ends_following_cleanly(tmp_path: Path) -> None:
    followed = Followed(json_lines(tmp_path / "a.jsonl", HEALTHY))
    followed.wait_for("step 199")
    followed.process.send_signal(signal.SIGINT)
    assert followed.finish() == 0
    assert "Traceback" not in followed.text


def test_idle_ends_following_with_the_verdict(tmp_path: Path) -> None:
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": HEALTHY}))
    followed = Followed(state, "--idle", "1")
    time.sleep(0.5)
    state.write_text(json.dumps({"log_history": [*HEALTHY, *RECORDS[FAILS:]]}))
    assert followed.finish() == 1
    calm = Followed(json_lines(tmp_path / "b.jsonl", HEALTHY), "--idle", "0.5")
    assert calm.finish() == 0
