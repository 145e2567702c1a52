"""forked: a piece of the present process once more, in a child that can change nothing outside itself."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from stayfinite.findings import Json
from stayfinite.hooks.interrupts import interrupts_wait
from stayfinite.sandbox import descriptors, landlock, memory, namespaces, support, syscalls
from stayfinite.sandbox.process import Kind, remove_scratch

Status = Literal["finished", "raised", "timed out", "died", "declined"]


@dataclass(frozen=True, slots=True)
class ForkResult:
    """What became of it. `value` is what the function gave; `reason` is a sentence where there is no value."""

    status: Status
    value: Json = None
    reason: str = ""

    @property
    def finished(self) -> bool:
        return self.status == "finished"


def obstacle(kind: Kind | None = None, *, alone: bool = False) -> str | None:
    """Why this process cannot be forked into a sandbox, as a sentence; None if it can.

    `alone`: the child does without other ranks.
    """
    if sys.platform != "linux":
        return "a process can be forked into a sandbox only on Linux"
    if not support.allows(kind):
        return support.sandbox().reason
    device = _accelerator()
    if device is not None:
        return f"the process has initialised {device}, which a forked child cannot use"
    ranks = 1 if alone else _ranks()
    if ranks > 1:
        return (
            f"the step is computed by {ranks} ranks together, and a forked child cannot speak with the others"
        )
    return memory.obstacle()


def forked(
    fn: Callable[[], Json], seconds: float, kind: Kind | None = None, *, alone: bool = False
) -> ForkResult:
    """Call `fn` in a sandboxed fork of this process, for so long at most, and give what it returns (JSON).

    Promises:

    - The child begins with the memory of this process, random numbers included, and nothing that it does comes back
      but the value. Files that it writes, removes or renames, messages it sends, signals it gives, shared memory it
      changes: all of that happens in its own copy (namespaces) or is refused (Landlock).
    - Descriptors of this process keep their positions, locks and content. Pipes, sockets and terminals are
      /dev/null in the child, so it neither prints nor takes what workers of a DataLoader send.
    - It computes with one thread (more would wait for threads that a fork does not copy), so sums may round
      differently than here.
    - Exit handlers, threads and finalizers of this process do not run in it. It is killed with all it has started
      when its time is over, when this call ends in any other way (Ctrl-C), and when this process dies.

    Where one of these cannot be kept it declines, with a sentence. Inside, a folder that was there before cannot be
    renamed by `os.rename` (EXDEV; `shutil.move` works). `kind` is for tests. `alone`: of several ranks this one
    forks, and its child speaks with none of the others.
    """
    result = _branch(fn, seconds, kind, alone=alone)
    assert isinstance(result, ForkResult), "with a function to call, nobody goes on inside"
    return result


class Inside:
    """This process is the sandboxed child, and goes on where its parent waits. `end` is its only way out."""

    def __init__(self, writing: int) -> None:
        self._writing = writing

    def end(self, value: Json) -> NoReturn:
        """Give the value to the parent; nothing of this process's own exit runs."""
        try:
            _say(self._writing, "finished", value=value)
        finally:
            os._exit(0)


def branch(seconds: float, *, alone: bool = False) -> Inside | ForkResult:
    """Return twice: in a sandboxed child as `Inside`, and here, when that has ended, with what it gave.

    For work that cannot be put into a function, because it is the caller's caller that does it. The promises are
    those of `forked`. `alone`: of several ranks this one forks, and its child speaks with none of the others.
    """
    return _branch(None, seconds, None, alone=alone)


def _branch(
    fn: Callable[[], Json] | None, seconds: float, kind: Kind | None, *, alone: bool = False
) -> Inside | ForkResult:
    reason = obstacle(kind, alone=alone)
    if reason is not None:
        return ForkResult("declined", reason=reason)
    kind = kind or support.sandbox().kind
    scratch = os.path.realpath(tempfile.mkdtemp(prefix="stayfinite-"))
    outside = os.getpid()
    try:
        return _Fork(fn, seconds, kind, scratch).result()
    except _GoOn as inside:
        return Inside(inside.writing)
    except OSError as error:  # no more processes, or the numbers of users were refused
        return ForkResult("declined", reason=f"the sandbox could not be made: {error.strerror or error}")
    finally:
        if os.getpid() == outside:
            remove_scratch(Path(scratch))


class _GoOn(BaseException):
    """The child is furnished and leaves the code that furnished it."""

    def __init__(self, writing: int) -> None:
        super().__init__()
        self.writing = writing


def _accelerator() -> str | None:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    for name in ("cuda", "xpu", "mps", "mtia"):
        module = getattr(torch, name, None)
        ready = getattr(module, "is_initialized", None)
        if ready is not None and ready():
            return name.upper()
    return None


def _ranks() -> int:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


class _Fork:
    """The present process outside, a guard between, the child that works inside."""

    def __init__(self, fn: Callable[[], Json] | None, seconds: float, kind: Kind, scratch: str) -> None:
        self._fn, self._seconds, self._kind, self._scratch = fn, seconds, kind, scratch
        self._random = random.getstate()  # python seeds anew in a forked child

    def result(self) -> ForkResult:
        deadline = time.monotonic() + self._seconds
        reading, writing = os.pipe()
        door = namespaces.Door.make() if self._kind == "namespaces" else None
        outside = os.getpid()
        child = -1
        try:
            with interrupts_wait():  # python swallows what a handler raises in its own work after a fork
                child = _fork()
            if child == 0:
                self._end_with(lambda: self._between(outside, reading, writing, door), writing)
            os.close(writing)
            if door is not None:
                door.open_for(child)
            return self._wait(reading, deadline)
        finally:
            if child > 0:
                os.close(reading)
                _kill(child)

    def _wait(self, reading: int, deadline: float) -> ForkResult:
        said = b""
        while b"\n" not in said:
            left = deadline - time.monotonic()
            if left <= 0:
                return ForkResult("timed out", reason=f"timed out after {self._seconds:g} s")
            if not select.select([reading], [], [], left)[0]:
                continue
            piece = os.read(reading, 1 << 16)
            if not piece:
                return ForkResult("died", reason="the forked child was killed")
            said += piece
        answer = json.loads(said.partition(b"\n")[0])
        return ForkResult(answer["status"], answer.get("value"), answer.get("reason", ""))

    # -- in the child

    def _between(self, outside: int, reading: int, writing: int, door: namespaces.Door | None) -> None:
        """Enters the namespaces; the process it starts is the first one inside, and everything dies with it."""
        os.close(reading)
        _forget_signals()
        os.setsid()
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        if door is not None:
            door.enter()
        syscalls.die_with_parent(signal.SIGKILL, outside)  # after entering: that clears it
        inside = _fork()
        if inside == 0:
            self._end_with(lambda: self._work(writing), writing)
        _, status = os.waitpid(inside, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            _say(writing, "died", reason=f"the forked child was ended by {signal.Signals(-code).name}")
        _say(writing, "died", reason=f"the forked child ended with exit code {code} instead of an answer")

    def _work(self, writing: int) -> None:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        inherited = descriptors.inherited(keep=(writing,))
        memory.separate()
        if self._kind == "namespaces":
            namespaces.furnish(Path(self._scratch))
        descriptors.replace_all(inherited, copy_on_write=self._kind == "namespaces")
        if self._kind == "namespaces":
            namespaces.lock()
        else:
            os.environ["TMPDIR"] = tempfile.tempdir = self._scratch
            landlock.restrict([Path(self._scratch)])
        random.setstate(self._random)
        if self._fn is None:
            raise _GoOn(writing)
        try:
            value = self._fn()
            json.dumps(value)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must not leave the child
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
            _say(writing, "raised", reason=said)
            return
        _say(writing, "finished", value=value)

    def _end_with(self, work: Callable[[], None], writing: int) -> None:
        """Whatever happens, the child ends here, and nothing of its parent's exit runs in it."""
        goes_on = False
        try:
            work()
        except _GoOn:
            goes_on = True
            raise
        except BaseException as error:  # noqa: BLE001 - see above
            with suppress(OSError):
                _say(writing, "declined", reason=f"the sandbox could not be entered: {error}")
        finally:
            if not goes_on:
                os._exit(0)


def _fork() -> int:
    with warnings.catch_warnings():
        # other threads: they are why only one is used inside
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _say(writing: int, status: Status, value: Json = None, reason: str = "") -> None:
    said = json.dumps({"status": status, "value": value, "reason": reason}).encode() + b"\n"
    while said:
        said = said[os.write(writing, said) :]


def _forget_signals() -> None:
    """Handlers of the script are not for its copy."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP) and callable(signal.getsignal(number)):
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)


def _kill(child: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with suppress(ChildProcessError):  # the script reaps children itself
        os.waitpid(child, 0)
