"""Asks the server for a process, and is to it what `subprocess` is to others."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

SERVER = Path(__file__).with_name("server.py")
_OUR_SEED, _SEED = "STAYFINITE_HASH_SEED", "PYTHONHASHSEED"


class _Server:
    def __init__(self) -> None:
        self.seed = str(int.from_bytes(os.urandom(4), "little"))
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # a pipe, as it is for what is forked from it
                env={**os.environ, **threads, _SEED: self.seed},
            )
        atexit.register(self.end)

    def end(self) -> None:
        self.ours.close()
        self.process.communicate()


@functools.cache
def _server() -> _Server:
    return _Server()


class Started:
    """A process of the server; `stdout` and `stderr` are what it writes."""

    def __init__(
        self, command: Sequence[str], folder: Path | str, environment: Mapping[str, str], stdin: int
    ) -> None:
        self.args = list(command)
        told, telling = os.pipe()
        out, to_out = os.pipe()
        err, to_err = os.pipe()
        asked = {"command": self.args[1:], "folder": str(folder), "environment": dict(environment)}
        files = [stdin, to_out, to_err, telling]
        socket.send_fds(_server().ours, [json.dumps(asked).encode()], files)
        for file in files[1:]:
            os.close(file)
        self.stdout: IO[str] = os.fdopen(out, encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(err, encoding="utf-8")
        self._told: IO[str] = os.fdopen(told, encoding="ascii")
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *error: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What is left to read of both, and the end of the process."""
        read = ["", ""]

        def reading(which: int, stream: IO[str]) -> None:
            read[which] = stream.read()

        readers = [
            threading.Thread(target=reading, args=one, daemon=True)
            for one in enumerate((self.stdout, self.stderr))
        ]
        end = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if end is None else max(end - time.monotonic(), 0.0))
        if any(reader.is_alive() for reader in readers):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if end is None else max(end - time.monotonic(), 0.0))
        self.stdout.close()
        self.stderr.close()
        return read[0], read[1]


def start(
    command: Sequence[str], *, cwd: Path | str | None = None, env: Mapping[str, str] | None = None
) -> Started:
    """`command` is this python and a file, `-m MODULE` or `-c CODE`, with arguments; no options of the interpreter."""
    assert command[0] == sys.executable
    environment = dict(os.environ if env is None else env)
    if list(command[1:4]) == ["-m", "stayfinite", "run"] and not {_SEED, _OUR_SEED} & set(environment):
        seed = _server().seed  # as `stayfinite run` does, which starts itself anew with a seed it has chosen
        environment |= {_SEED: seed, _OUR_SEED: seed}
    with Path(os.devnull).open() as nothing:
        return Started(command, cwd or Path.cwd(), environment, nothing.fileno())


def run(
    command: Sequence[str],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with text and both outputs captured."""
    process = start(command, cwd=cwd, env=env)
    try:
        output, errors = process.communicate(timeout)
    except BaseException:
        process.kill()
        raise
    if check and process.wait() != 0:
        raise AssertionError(f"it ended with {process.wait()}\n{output}\n{errors}")
    return subprocess.CompletedProcess(process.args, process.wait(), output, errors)
