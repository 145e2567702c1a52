"""Many scripts, each in a process of its own, without loading torch for each: they are forked from one that has it.

A script under `stayfinite run` may ask for a second run, which wants a fresh process too. That one is forked from the
first process as well, which has never run a script, and into the same sandbox.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO


def load() -> None:
    """What every script would load for itself: torch, what its optimizers import, and ourselves."""
    for name in ("torch", "torch._dynamo", "stayfinite.launch"):
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)  # a fork must not inherit a pool of threads


def in_fork(work: Callable[[], int], log: Path, folder: Path) -> int:
    """Run `work` in a forked child in `folder`, its output going to `log`; returns the exit code."""
    asking, asked = os.pipe()
    answering, answered = os.pipe()

    def child() -> int:
        os.close(asking)
        os.close(answered)
        _redirect(log)
        _second_runs_ask(asked, answering)
        return work()

    process = _fork(child, folder)
    os.close(asked)
    os.close(answering)
    with os.fdopen(asking, "rb") as requests, os.fdopen(answered, "wb") as answers:
        while True:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if select.select([requests], [], [], 0.02)[0]:
                _serve(requests, answers)


def stayfinite(command: Sequence[str]) -> int:
    """The command `stayfinite` in this process; returns its exit code."""
    from stayfinite.cli import main

    try:
        main(list(command), standalone_mode=False)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    return 0


def _fork(work: Callable[[], int], folder: Path) -> int:
    process = os.fork()
    if process == 0:
        code = 70
        try:
            os.chdir(folder)
            code = work()
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return process


def _redirect(log: Path) -> None:
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)


def _second_runs_ask(asked: int, answering: int) -> None:
    """Have second runs of this process forked by its parent."""
    from stayfinite.launch import second_run
    from stayfinite.sandbox.process import ProcessResult

    def ask(
        command: Sequence[str],
        environment: dict[str, str],
        seconds: float,
        kind: str,
        folder: str,
        exchange: Path,
        past: Any,
    ) -> ProcessResult:
        request = {
            "command": list(command),
            "environment": environment,
            "seconds": seconds,
            "folder": folder,
            "exchange": str(exchange),
            "past": past.to_json(),
        }
        os.write(asked, json.dumps(request).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += os.read(answering, 1 << 16)
        return ProcessResult(**json.loads(answer))

    second_run.in_fresh_process = ask  # type: ignore[assignment]


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """One request, in a sandboxed fork; at the end of them there is none."""
    from stayfinite.sandbox.fork import forked
    from stayfinite.sandbox.past import Past

    line = requests.readline()
    if not line:
        return
    request = json.loads(line)
    exchange = Path(request["exchange"])

    def work() -> dict[str, str]:
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        Past.from_json(request["past"]).put_in_place()
        os.waitpid(_fork(lambda: stayfinite(request["command"]), Path(request["folder"])), 0)
        return {path.name: path.read_text() for path in exchange.glob("*.json")}

    done = forked(work, request["seconds"])
    for name, text in (done.value or {}).items():
        (exchange / name).write_text(text)
    status = {"finished": "finished", "timed out": "timed out"}.get(done.status, "not started")
    answers.write(json.dumps({"status": status, "exit_code": 0, "reason": done.reason}).encode() + b"\n")
    answers.flush()
