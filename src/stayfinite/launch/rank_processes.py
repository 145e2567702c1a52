"""RankProcesses: the processes of one script on several ranks. They end together, whatever ends one of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType

_GRACE = 20.0  # seconds that the others have to end by themselves after one has failed
_LAST_GRACE = 5.0  # and after they were asked to (SIGTERM)
_LOOK_EVERY = 0.05


class RankProcesses:
    """Started by `start`; `wait` gives the exit code of the whole."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._processes: list[subprocess.Popen[bytes]] = []
        self._deadline: float | None = None  # for those that still run
        self._asked = False
        self.interrupted = False
        self.first_failed: int | None = None

    def start(self, commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> None:
        """One process a command and environment, in the terminal's own process group: Ctrl-C reaches all of them."""
        try:
            for command, environment in commands:
                self._processes.append(subprocess.Popen(command, env=dict(environment)))
        except BaseException:
            self._end_all()
            raise

    def wait(self) -> int:
        """Until all have ended: 0, or the code of the first that failed (128 + number for a signal)."""
        handlers = {n: signal.signal(n, self._stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            while any(process.poll() is None for process in self._processes):
                self._look()
                time.sleep(_LOOK_EVERY)
            self._look()
        finally:
            self._end_all()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self.first_failed is None:
            return 0
        code = self._processes[self.first_failed].returncode
        return code if code >= 0 else 128 - code

    def _look(self) -> None:
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code and self.first_failed is None:
                self.first_failed = rank
                self._deadline = self._deadline or time.monotonic() + _GRACE
                if code < 0 and not self.interrupted and len(self._processes) > 1:
                    name = signal.Signals(-code).name
                    self._say(f"rank {rank} was ended by {name}; the other ranks cannot go on without it.")
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._send(signal.SIGKILL if self._asked else signal.SIGTERM)
            self._asked, self._deadline = True, time.monotonic() + _LAST_GRACE

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C: the terminal has told all of them; a second one, and any other signal, is handed on."""
        if number == signal.SIGTERM:
            self._send(signal.SIGTERM)
        elif self.interrupted:
            self._send(signal.SIGKILL)
        elif os.getpgrp() != _foreground_group():
            self._send(signal.SIGINT)  # sent to this process alone
        self.interrupted = self.interrupted or number == signal.SIGINT
        self._deadline = time.monotonic() + _GRACE

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.send_signal(number)

    def _end_all(self) -> None:
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()


def rank_environments(ranks: int, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """What torchrun gives its workers, for one host; a rendezvous address that is set already is kept."""
    made = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
        **environment,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
    }
    return [{**made, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def _foreground_group() -> int | None:
    """The process group that the terminal sends Ctrl-C to; None without a terminal."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY)
        try:
            return os.tcgetpgrp(terminal)
        finally:
            os.close(terminal)
    return None
