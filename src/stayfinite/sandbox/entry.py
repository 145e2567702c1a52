"""The helper between us and a sandboxed command: makes the sandbox, starts the command, and outlives neither.

Started by `process.run` in a fresh interpreter, because only a process with one thread may enter a user namespace.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from stayfinite.sandbox import landlock, namespaces, syscalls
from stayfinite.sandbox.past import Past


def main(arguments: list[str]) -> None:
    parent = os.getppid()
    told, writing = (int(number) for number in arguments)
    os.set_inheritable(writing, False)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)  # whatever the command leaves behind comes to us
    signal.signal(signal.SIGTERM, _stop)
    syscalls.die_with_parent(signal.SIGTERM, parent)
    with os.fdopen(told, "rb") as handle:
        spec = json.loads(handle.read())
    Helper(spec, writing).run()


def _stop(number: int, frame: object) -> None:
    kill_descendants()
    os._exit(1)


class Helper:
    """One command, and what it needs."""

    def __init__(self, spec: dict[str, Any], writing: int) -> None:
        self._spec, self._writing = spec, writing
        self._exchange = Path(spec["exchange"])

    def run(self) -> None:
        try:
            if self._spec["kind"] == "namespaces":
                self._in_namespaces()
            else:
                self._reap(_fork(self._plainly))
        except OSError as error:
            self._tell(failed=f"{error.strerror or error}")
        finally:
            kill_descendants()

    # -- namespaces: one process that enters, the first one inside, the command

    def _in_namespaces(self) -> None:
        door, outside = namespaces.Door.make(), os.getpid()
        between = _fork(lambda: self._enter(door, outside))
        door.open_for(between)
        os.waitpid(between, 0)

    def _enter(self, door: namespaces.Door, outside: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            door.enter()
        except OSError as error:
            self._tell(failed=f"{error.strerror or error}")
            return
        syscalls.die_with_parent(signal.SIGKILL, outside)  # after entering: that clears it
        first = _fork(self._first_inside)
        os.waitpid(first, 0)

    def _first_inside(self) -> None:
        """When this process ends, the kernel ends every other one inside."""
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            os.chdir(self._spec["folder"])
            problems = namespaces.furnish(Path(self._spec["scratch"]), exchange=self._exchange)
            failed = Past.from_json(self._spec["past"]).put_in_place()
        except OSError as error:
            self._tell(failed=f"{error.strerror or error}")
            return
        self._tell(unlike=[*problems, *failed])
        self._reap(_fork(self._locked))

    def _locked(self) -> None:
        os.setsid()
        namespaces.lock()
        self._start(self._spec["environment"])

    # -- Landlock, or nothing

    def _plainly(self) -> None:
        parent = os.getppid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        environment = dict(self._spec["environment"])
        os.chdir(self._spec["folder"])
        if self._spec["kind"] == "landlock":
            environment["TMPDIR"] = tempfile.mkdtemp(dir=self._exchange)
            landlock.restrict([self._exchange])
        syscalls.die_with_parent(signal.SIGKILL, parent)
        self._start(environment)

    # -- both

    def _start(self, environment: dict[str, str]) -> None:
        command = self._spec["command"]
        try:
            os.execvpe(command[0], command, environment)
        except OSError as error:
            self._tell(failed=f"{command[0]}: {error.strerror}")

    def _reap(self, command: int) -> None:
        """Wait for the command; others that come to us on the way are let go."""
        while True:
            ended, status = os.wait()
            if ended == command:
                self._tell(code=os.waitstatus_to_exitcode(status))
                return

    def _tell(self, **what: object) -> None:
        os.write(self._writing, json.dumps(what).encode() + b"\n")


def _fork(work: Callable[[], None]) -> int:
    process = os.fork()
    if process == 0:
        _do_and_leave(work)
    return process


def _do_and_leave(work: Callable[[], None]) -> NoReturn:
    code = 70
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def kill_descendants() -> None:
    """End everything that came from this process, however far; what is orphaned on the way comes to us."""
    for _ in range(100):
        children = descendants(os.getpid())
        if not children:
            return
        for process in children:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    break
            except ChildProcessError:
                break


def descendants(process: int) -> list[int]:
    """By the table of processes."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            if fields[0] != "Z" or int(fields[1]) == process:
                parents[int(entry.name)] = int(fields[1])
    found: list[int] = []
    for one in parents:
        above = parents.get(one)
        while above is not None and above != process and above > 1:
            above = parents.get(above)
        if above == process:
            found.append(one)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
