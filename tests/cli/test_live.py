"""`stayfinite live` as a process: who is let in, what a page is told as files come, grow, rotate and vanish."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from report.written_runs import forecast, full_run, incident, step_line, vitals, write_incident, write_lines

PATIENCE = 20


class Live:
    """A server in a process of its own, and what one asks it."""

    def __init__(self, root: Path, *options: str) -> None:
        command = [sys.executable, "-m", "stayfinite", "live", str(root), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        parts = urlsplit(self.address)
        self.host, self.port, self.token = str(parts.hostname), parts.port, parts.query.removeprefix("token=")

    @contextmanager
    def get(self, path: str, *, method: str = "GET", **headers: str) -> Iterator[http.client.HTTPResponse]:
        with closing(
            http.client.HTTPConnection(self.host, int(self.port or 0), timeout=PATIENCE)
        ) as connection:
            connection.request(method, path, headers=headers)
            with closing(connection.getresponse()) as answer:
                yield answer

    def text(self, path: str) -> str:
        with self.get(path, Cookie=f"stayfinite={self.token}") as answer:
            assert answer.status == 200
            return answer.read().decode()

    @contextmanager
    def events(self, path: str = "/events") -> Iterator[Iterator[dict[str, Any]]]:
        with self.get(path, Cookie=f"stayfinite={self.token}") as answer:
            assert answer.status == 200
            yield (json.loads(line[6:]) for line in answer if line.startswith(b"data: "))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.errors = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return code


@contextmanager
def live(root: Path, *options: str) -> Iterator[Live]:
    server = Live(root, *options)
    try:
        yield server
    finally:
        server.stop()


def until(messages: Iterator[dict[str, Any]], key: str, wanted: Any) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    for message in messages:
        if message.get(key) == wanted:
            return message
        assert time.monotonic() < deadline, f"no {key} {wanted}; the last message has {sorted(message)}"
    raise AssertionError("the stream ended")


def test_only_who_knows_the_token_is_let_in(tmp_path: Path) -> None:
    full_run(tmp_path / "run", steps=410)
    with live(tmp_path / "run") as server:
        for path in ("/", "/events", "/run/x", "/?token=wrong", "/?token="):
            with server.get(path) as answer:
                assert answer.status == 403
                assert "open the address" in answer.read().decode()
        with server.get("/", Cookie="stayfinite=wrong") as answer:
            assert answer.status == 403
        with server.get(f"/?token={server.token}") as answer:
            assert answer.status == 303 and answer.headers["Location"] == "/"
            cookie = answer.headers["Set-Cookie"]
            assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        own = {"Cookie": f"stayfinite={server.token}"}
        with server.get("/", **own, Host="evil.example") as answer:  # a name rebound to this machine
            assert answer.status == 400
        for method in ("POST", "PUT", "DELETE"):
            with server.get("/", method=method, **own) as answer:
                assert answer.status == 405
        page = server.text("/")
        assert "connect-src &#39;self&#39;" in page and server.token not in page


def test_a_run_that_comes_later_grows_rotates_shrinks_and_fails(tmp_path: Path) -> None:
    run = tmp_path / "later" / "run"
    with live(run) as server, server.events() as messages:
        assert next(messages)["step"] is None
        until(messages, "begun", False)
        write_lines(
            run, [{"event": "start", "step": 0, "environment": {"torch": "2.13"}}, step_line(0), step_line(1)]
        )
        message = until(messages, "step", 1)
        assert {chart["id"] for chart in message["charts"]} >= {"run:loss", "run:lr"}
        assert "2 steps on record" in message["fragments"]["summary"]
        with (run / "run.jsonl").open("a") as file:  # a line in two pieces
            file.write('{"step": 2, "lo')
            file.flush()
            time.sleep(0.6)
            file.write('ss": "nan", "action": "skip", "what": "the loss is nan"}\n')
        message = until(messages, "step", 2)
        assert message["series"]["run:loss"]["loss"]["bad"] == [[0, 1, 0, 0]]
        assert message["actions"]["skip"]["at"] == [2]
        write_incident(run, "0001", incident("a.py", step=2))
        write_lines(run, [{"event": "incident", "step": 2, "incident": "0001", "times": 1}])
        while "incident-0001" not in message.get("fragments", {}):
            message = next(messages)
        assert {chart["group"] for chart in message["charts"]} == {"i0001", "i0001-growth"}
        write_lines(run, [vitals(3), forecast(3, 8, 14), step_line(3)])
        message = until(messages, "step", 3)
        assert message["heat"]["modules"][0] == "blocks.0"
        assert "between step 11 and 17" in message["fragments"]["outlook"]
        (run / "run.jsonl").rename(run / "run.jsonl.1")
        write_lines(run, [step_line(4)])
        until(messages, "step", 4)
        (run / "run.jsonl").write_text("")
        time.sleep(0.6)
        write_lines(run, [{"event": "start", "step": 0}, step_line(5)])
        until(messages, "step", 5)
        write_lines(
            run, [{"event": "start", "step": 0}, step_line(0, loss=7.5)]
        )  # a new run in the same folder
        message = until(messages, "step", 0)
        assert message["whole"] is True
        with server.events() as others:  # who comes now gets the whole
            assert next(others)["charts"][0]["series"]["loss"]["low"] == [7.5]


def test_several_runs_are_listed_and_no_other_folder_can_be_named(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    (tmp_path / "secret").mkdir()
    write_lines(tmp_path / "secret", [step_line(0)])
    with live(root) as server, server.events() as waiting:
        write_lines(root / "a b<i>", [step_line(0), step_line(7)])
        until(waiting, "reload", True)  # what looked like a run to come is a folder of runs
        page = server.text("/")
        assert "/run/a%20b%3Ci%3E" in page and "a b&lt;i&gt;" in page
        assert "7" in page
        with server.events("/run/a%20b%3Ci%3E/events") as messages:
            until(messages, "step", 7)
        assert "2 steps on record" in server.text("/run/a%20b%3Ci%3E")
        for path in ("/run/..%2Fsecret", "/run/%2e%2e", "/run/..%2Fsecret/events", "/run/nothing"):
            with server.get(path, Cookie=f"stayfinite={server.token}") as answer:
                assert answer.status == 404


def test_ctrl_c_ends_it_while_a_page_is_open(tmp_path: Path) -> None:
    write_lines(tmp_path, [step_line(0)])
    server = Live(tmp_path)
    try:
        with server.events() as messages:
            until(messages, "step", 0)
            assert server.stop() == 0
            assert "Traceback" not in server.errors
    finally:
        server.process.kill()
    assert list(tmp_path.iterdir()) == [tmp_path / "run.jsonl"]  # nothing was written


def test_a_run_that_is_killed_stays_to_be_seen(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom stayfinite.watch.recorder import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]))\n"
        "for i in range(10**6):\n    recorder.write({'step': i, 'loss': 1.0, 'action': 'none'}, now=i % 7 == 0)\n"
        "    time.sleep(0.001)\n"
    )
    with live(tmp_path / "run") as server, server.events() as messages:
        writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")])
        last = 0
        while last < 100:
            last = next(messages).get("step") or last
            assert writer.poll() is None
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        for message in messages:
            last = message.get("step") or last
            if message.get("quiet", 0) > 1:
                break
        written = [json.loads(line)["step"] for line in (tmp_path / "run" / "run.jsonl").read_text().splitlines()
                   if line.endswith("}")]  # fmt: skip
        assert last == written[-1]


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stayfinite", "live", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_wrong_usage_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run_cli(str(tmp_path / "file"))
    assert result.returncode == 2 and "is a file" in result.stderr and result.stderr.count("\n") == 1
    result = run_cli(str(tmp_path), "--host", "203.0.113.9")
    assert result.returncode == 2 and "cannot listen on 203.0.113.9" in result.stderr


def test_the_terminal_twin_prints_lines_where_nothing_can_be_redrawn(tmp_path: Path) -> None:
    full_run(tmp_path / "run", steps=410)
    command = [sys.executable, "-u", "-m", "stayfinite", "live", str(tmp_path), "--terminal"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        said = [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == ""
    assert re.match(r"step 409 \| loss .* applied 407 \| skipped 3", said[0])
    assert said[5] == "step 400: incident incident 0001\n"


@pytest.mark.parametrize("steps", [0, 1, 410])
def test_the_terminal_twin_draws_a_screen(tmp_path: Path, steps: int) -> None:
    from rich.console import Console

    from stayfinite.report.live.follower import RunFollower
    from stayfinite.report.live.terminal import picture

    if steps:
        full_run(tmp_path, steps=steps)
    follower = RunFollower(tmp_path)
    follower.poll()
    out = Console(width=100, height=40, record=True, file=io.StringIO())
    out.print(picture(follower, 100, 40))
    text = out.export_text()
    if steps == 410:
        assert "Step 400: the loss is not finite" in text and "Largest outputs, steps 0 to 400" in text
        (strip,) = re.findall(r"^blocks\.11 .*gain \S+ +(\S+)", text, re.MULTILINE)
        assert strip[0] in "▁▂▃▄▅▆" and strip[-1] == "█"  # it grows, and is the largest
        assert re.search(r"^forecasts +▲+ *$", text, re.MULTILINE)
        assert re.search(r"^Loss .*!", text, re.MULTILINE) and re.search(
            r"^Gradient norm .*×", text, re.MULTILINE
        )
    elif steps == 0:
        assert "waiting for the run to begin" in text
