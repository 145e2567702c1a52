"""run: a command in a fresh process inside a sandbox, which dies with us and in time."""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import stayfinite
from stayfinite.sandbox.past import Past

Kind = Literal["namespaces", "landlock", "none"]
Status = Literal["finished", "timed out", "died", "not started"]
_PATIENCE = 5.0  # seconds that the sandbox may take to clean up after itself
_LAUNCHER = "import sys; sys.path.insert(0, sys.argv[1]); from stayfinite.sandbox.entry import main; main(sys.argv[2:])"


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """What became of a command."""

    status: Status
    exit_code: int | None = None
    signal: int | None = None
    seconds: float = 0.0
    reason: str = ""  # why it was not started
    unlike: tuple[str, ...] = field(default=())  # places and files that were not as they should have been

    @property
    def sentence(self) -> str:
        """The same in words."""
        if self.status == "finished":
            return f"ended with exit code {self.exit_code}"
        if self.status == "timed out":
            return f"timed out after {self.seconds:.0f} s"
        if self.status == "died":
            return f"was ended by {signal.Signals(self.signal).name}" if self.signal else "was killed"
        return self.reason


def run(
    command: Sequence[str],
    kind: Kind,
    seconds: float,
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
    exchange: Path | None = None,
    past: Past | None = None,
    stderr: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> ProcessResult:
    """Run `command` in a sandbox of this kind, for `seconds` at most.

    Standard input is empty, output is thrown away (`stderr` may be a descriptor). What it writes below `exchange`
    stays; anything else is gone afterwards (namespaces) or refused (Landlock). With `past`, files are first made to
    look as they did (namespaces only). `progress` is called about once a second. Kind "none" has no sandbox at
    all: everything that the command does is done.
    """
    begun = time.monotonic()
    if platform.system() != "Linux":
        return _run_elsewhere(command, kind, seconds, environment, folder)
    own = Path(os.path.realpath(tempfile.mkdtemp(prefix="stayfinite-")))
    try:
        (own / "scratch").mkdir()
        (own / "exchange").mkdir()
        reading, writing = os.pipe()
        told, telling = os.pipe()
        spec = {
            "command": list(command),
            "kind": kind,
            "environment": dict(os.environ if environment is None else environment),
            "folder": folder or os.getcwd(),  # noqa: PTH109 - as it is spelled, whatever links are in it
            "exchange": os.path.realpath(exchange or own / "exchange"),
            "scratch": str(own / "scratch"),
            "past": (past or Past()).to_json(),
        }
        helper = [sys.executable, "-I", "-S", "-c", _LAUNCHER, _source_folder(), str(told), str(writing)]
        child = subprocess.Popen(
            helper,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr if stderr is not None else subprocess.DEVNULL,
            pass_fds=(told, writing),
            start_new_session=True,
        )
        os.close(writing)
        os.close(told)
        try:
            with suppress(BrokenPipeError), os.fdopen(telling, "wb") as handle:
                handle.write(json.dumps(spec).encode())
            said = _listen(reading, begun + seconds, begun, progress)
        finally:
            os.close(reading)
            _end(child)
    finally:
        remove_scratch(own)
    return _result(said, time.monotonic() - begun)


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a process like this one."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-m", module, *arguments]


def remove_scratch(folder: Path) -> None:
    """Remove it; an overlay leaves folders in it that nobody may enter."""
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            Path(path).chmod(0o700)
            for name in Path(path).iterdir():
                if name.is_dir() and not name.is_symlink():
                    name.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _run_elsewhere(
    command: Sequence[str],
    kind: Kind,
    seconds: float,
    environment: Mapping[str, str] | None,
    folder: str | None,
) -> ProcessResult:
    """Where there is no sandbox: the command itself, if that is what was asked for."""
    if kind != "none":
        return ProcessResult("not started", reason=f"there are no {kind} on this system")
    begun, quiet = time.monotonic(), subprocess.DEVNULL
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ProcessResult("timed out", seconds=seconds)
    except OSError as error:
        return ProcessResult("not started", reason=f"{command[0]}: {error.strerror}")
    return _result({"code": done.returncode}, time.monotonic() - begun)


def _source_folder() -> str:
    return str(Path(stayfinite.__file__).parent.parent)


def _listen(
    reading: int, deadline: float, begun: float, progress: Callable[[float], None] | None
) -> dict[str, Any] | None:
    """What the helper tells until it is done; None if the time is over."""
    said, told = b"", {}
    while True:
        now = time.monotonic()
        if now >= deadline:
            return None
        if select.select([reading], [], [], min(1.0, deadline - now))[0]:
            piece = os.read(reading, 1 << 16)
            if not piece:
                break
            said += piece
        elif progress is not None:
            progress(time.monotonic() - begun)
    for line in said.splitlines():
        told.update(json.loads(line))
    return told


def _end(child: subprocess.Popen[bytes]) -> None:
    """The helper takes everything with it; if it does not, it is killed."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()


def _result(told: dict[str, Any] | None, seconds: float) -> ProcessResult:
    if told is None:
        return ProcessResult("timed out", seconds=seconds)
    unlike = tuple(told.get("unlike", ()))
    if "failed" in told:
        return ProcessResult("not started", seconds=seconds, reason=told["failed"])
    code = told.get("code")
    if code is None or code < 0:
        return ProcessResult("died", signal=-code if code else None, seconds=seconds, unlike=unlike)
    return ProcessResult("finished", exit_code=code, seconds=seconds, unlike=unlike)
