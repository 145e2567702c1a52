"""Runs one script in a world of its own, and says what it left in files and sent as messages."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fresh_python

from .table import Script

OLD = 1_500_000_000


@dataclass
class Trial:
    """What one run left."""

    tree: dict[str, Any] = field(default_factory=dict)
    messages: Counter[str] = field(default_factory=Counter)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    code: int = 0
    out: str = ""
    err: str = ""

    @property
    def lines(self) -> list[int]:
        return [i["birth"]["line"] for i in self.incidents if i["birth"]]


class Listeners:
    """Servers that count what they are sent, and a process that counts signals."""

    def __init__(self, folder: Path, name: str) -> None:
        self.heard: Counter[str] = Counter()
        self.path, self.abstract = str(folder / "s.sock"), name
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.tcp = self._listen("tcp", socket.create_server(("127.0.0.1", 0)))
        self._listen("unix", self._bound(self.path))
        self._listen("abstract", self._bound("\0" + name))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        self.udp = udp.getsockname()[1]
        self._sockets.append(udp)
        self._start(lambda: self._datagram(udp))
        self.victim = subprocess.Popen(
            [sys.executable, "-S", "-c", _VICTIM],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.victim.stdout is not None and self.victim.stdout.readline() == "ready\n"

    @staticmethod
    def _bound(address: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(address)
        made.listen()
        return made

    def _listen(self, kind: str, server: socket.socket) -> int:
        self._sockets.append(server)

        def once() -> None:
            connection, _ = server.accept()
            with connection:
                self._count(kind, connection.recv(100))

        self._start(once)
        name = server.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    def _start(self, once: Any) -> None:
        def work() -> None:
            while True:
                try:
                    once()
                except OSError:
                    return

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _datagram(self, udp: socket.socket) -> None:
        message = udp.recv(100)
        if not message:
            raise OSError("closed")
        self._count("udp", message)

    def _count(self, kind: str, message: bytes) -> None:
        self.heard[f"{kind} {message!r}"] += 1

    def close(self) -> Counter[str]:
        self.victim.send_signal(signal.SIGTERM)
        signals, _ = self.victim.communicate(timeout=20)
        self.heard["signals"] += len(signals.split())
        for one in self._sockets:
            with suppress(OSError):  # an unconnected one says so, and wakes up all the same
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for one in self._sockets:
            one.close()
        return +self.heard


_VICTIM = """
import signal, sys
signal.alarm(900)
signal.signal(signal.SIGUSR1, lambda *_: print("signal", flush=True))
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("ready", flush=True)
while True: signal.pause()
"""


@contextmanager
def world(base: Path, script: Script) -> Iterator[Path]:
    """A folder with a home, and the files that are there before, all of them old."""
    place = base / "world"
    shutil.rmtree(place, ignore_errors=True)
    (place / "home").mkdir(parents=True)
    work = place / "work"
    work.mkdir()
    for name, text in script.files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    (work / "train.py").write_text(script.source)
    for path in [*place.rglob("*"), place]:
        os.utime(path, (OLD, OLD), follow_symlinks=False)
    yield place


def tried(
    script: Script, base: Path, *options: str, sandbox: str = "", run: fresh_python.Run = fresh_python.run
) -> Trial:
    """Run the script under `stayfinite run` with these options."""
    name = "stayfinite-trial-" + hashlib.sha1(str(base).encode()).hexdigest()[:12]
    outside = [Path("/dev/shm", name), Path("/tmp", name)]
    listeners, trial = Listeners(base, name), Trial()
    with world(base, script) as place:
        output = base / "out.json"
        output.unlink(missing_ok=True)
        given = [str(listeners.tcp), str(listeners.udp), listeners.path, name, str(listeners.victim.pid)]
        command = [sys.executable, "-m", "stayfinite", "run", "--format", "json", "--output", str(output)]
        command += ["--run-dir", str(base / "record"), *options, "train.py", *given]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(place / "home")}
        if sandbox:
            environment["STAYFINITE_SANDBOX"] = sandbox
        done = run(command, cwd=place / "work", env=environment)
        trial.code, trial.out, trial.err = done.returncode, done.stdout, done.stderr
        trial.tree = {
            **seen(place, script.random),
            **{p.parts[1]: p.read_bytes() for p in outside if p.is_file()},
        }
        if output.exists():
            trial.incidents = json.loads(output.read_text())["incidents"]
    trial.messages = listeners.close()
    for path in (*outside, Path(listeners.path)):
        path.unlink(missing_ok=True)
    return trial


def seen(place: Path, random: tuple[str, ...]) -> dict[str, Any]:
    """Every path with its content; of files that were there before and are untouched, also that they are."""
    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        parts = list(path.relative_to(place).parts)
        if "__pycache__" in parts:
            continue
        varies = any(part.startswith(random) for part in parts) if random else False
        named = "/".join("*" if random and part.startswith(random) else part for part in parts)
        untouched = path.lstat().st_mtime == OLD
        if path.is_symlink():
            found[named] = ("link", str(path.readlink()))
        elif path.is_file():
            content = b"" if varies and path.name.startswith(random) else path.read_bytes()
            found[named] = (path.lstat().st_mode, untouched, hashlib.sha1(content).hexdigest())
        else:
            found[named] = (path.lstat().st_mode, untouched)
    found["number of paths"] = sum("__pycache__" not in path.parts for path in place.rglob("*"))
    return found


def differences(one: Trial, other: Trial) -> list[str]:
    """What the two runs left differently in the world."""
    found = [f"{key}: {one.tree.get(key)} and {other.tree.get(key)}" for key in sorted({*one.tree, *other.tree})
             if one.tree.get(key) != other.tree.get(key)]  # fmt: skip
    if one.messages != other.messages:
        found.append(f"messages: {dict(one.messages)} and {dict(other.messages)}")
    if (one.code, one.out) != (other.code, other.out):
        found.append(f"exit code or output: {one.code} {one.out!r} and {other.code} {other.out!r}")
    return found
