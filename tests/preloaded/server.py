"""Loads torch once, then forks a process for every request on the socket whose number is its argument.

A request is a JSON object (command, folder, environment) and four open files: stdin, stdout, stderr and one to tell
of the process: its id, then how it ended. The process runs `FILE`, `-m MODULE` or `-c CODE` as python would.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LOADED = (
    "torch",
    "torch._dynamo",
    "numpy",
    "yaml",
    "click",
    "rich.console",
    "stayfinite.launch",
    "stayfinite.guard",
)


def given_places() -> list[str]:
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path(place).absolute()) for place in places if place]


INSTALLED = [place for place in sys.path[1:] if place not in given_places()]


def load() -> None:
    for name in LOADED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)  # a fork does not inherit a pool of threads
    gc.collect()
    gc.freeze()


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """In the server None, at the end of all requests; in a new process what it has to run."""
    while True:
        line, files, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not line:
            while reaped(0):
                pass
            return None
        asked: dict[str, Any] = json.loads(line)
        if os.fork() == 0:
            requests.close()
            if tell_of_child(files[3]):
                put_in_place(asked, files)
                return asked
        for file in files:
            os.close(file)
        while reaped(os.WNOHANG):
            pass


def reaped(options: int) -> bool:
    """Waiting counts the time of the children as that of the server, and so as that of the tests."""
    try:
        return os.waitpid(-1, options)[0] != 0
    except ChildProcessError:
        return False


def tell_of_child(told: int) -> bool:
    """True in a child of this process, which waits for it, tells how it ended, and ends."""
    child = os.fork()
    if child == 0:
        os.close(told)
        return True
    os.write(told, f"{child}\n".encode())
    for file in (0, 1, 2):
        os.close(file)
    os.closerange(3, told)
    os.closerange(told + 1, 256)
    _, status = os.waitpid(child, 0)
    os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def put_in_place(asked: Mapping[str, Any], files: Sequence[int]) -> None:
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files[:3]:
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.modules["numpy"].random.seed()
    sys.path[:] = [*given_places(), *INSTALLED]
    sys.orig_argv = [sys.executable, *asked["command"]]


def run(command: Sequence[str]) -> None:
    """As `python COMMAND`."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    if command[0] == "-m":
        sys.argv = list(command[1:])
        sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
    elif command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        sys.path.insert(0, "")
        exec(compile(command[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = list(command)
        sys.path.insert(0, str(Path(command[0]).resolve().parent))
        main.__file__ = str(Path(command[0]).absolute())
        exec(compile(Path(command[0]).read_bytes(), main.__file__, "exec"), main.__dict__)


def run_to_its_end(command: Sequence[str]) -> None:
    """An error leaves a traceback of what was run, without the lines of this file."""
    try:
        run(command)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the process
        beneath = error.__traceback__
        while beneath is not None and beneath.tb_frame.f_code.co_filename == __file__:
            beneath = beneath.tb_next
        sys.excepthook(type(error), error.with_traceback(beneath), beneath)
        sys.exit(1)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as own_end:
        load()
        to_do = serve(own_end)
    if to_do is not None:
        run_to_its_end(to_do["command"])
