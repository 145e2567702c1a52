"""Runs a script or module as `__main__`, the way python itself does: argv, path, exit code, tracebacks."""

from __future__ import annotations

import os
import runpy
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import stayfinite
from stayfinite.recover import RunStopped

_OURS = str(Path(stayfinite.__file__).parent)
REPLACED: dict[str, str] = {}  # in a trial of a remedy: the text that is run instead, by file


@dataclass(frozen=True, slots=True)
class ScriptEnd:
    """How the script ended."""

    exit_code: int
    error: BaseException | None = None
    interrupted: bool = False


def run_as_main(target: str, arguments: Sequence[str], *, module: bool) -> ScriptEnd:
    """Run it to its end, print the traceback of an uncaught exception, and wait for its threads."""
    try:
        if module:
            _run_module(target, arguments)
        else:
            _run_file(target, arguments)
        outcome = ScriptEnd(0)
    except SystemExit as leaving:
        outcome = ScriptEnd(_exit_code(leaving))
    except RunStopped:  # its guard has said why
        outcome = ScriptEnd(1)
    except KeyboardInterrupt as error:
        _show(error)
        outcome = ScriptEnd(130, error, interrupted=True)
    except BaseException as error:  # noqa: BLE001 - python itself reports whatever a script raises
        _show(error)
        outcome = ScriptEnd(1, error)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    return outcome


def _run_file(target: str, arguments: Sequence[str]) -> None:
    path = Path(os.path.abspath(target))  # noqa: PTH100 - as python has it: links stay
    source = REPLACED.get(os.path.realpath(path)) or path.read_bytes()
    code = compile(source, str(path), "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=str(path), __builtins__=__builtins__, __spec__=None, __cached__=None, __package__=None
    )
    sys.modules["__main__"] = main
    sys.argv = [target, *arguments]
    sys.path[0] = str(path.resolve().parent)
    exec(code, main.__dict__)


def _run_module(target: str, arguments: Sequence[str]) -> None:
    sys.argv = [target, *arguments]
    sys.path[0] = os.getcwd()  # noqa: PTH109 - what `python -m` puts there
    runpy.run_module(target, run_name="__main__", alter_sys=True)


def _exit_code(leaving: SystemExit) -> int:
    """sys.exit(3) is 3, sys.exit() is 0, sys.exit("text") prints the text and is 1."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    print(leaving.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """The traceback as the script would have shown it: our frames are in it only where nobody else's are."""
    trace = without_our_frames(error.__traceback__)
    error = error.with_traceback(trace)
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, trace)
    else:
        traceback.print_exception(type(error), error, trace)


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the script, and none of the frames that stand between it and torch."""
    kept: list[TracebackType] = []
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith(_OURS) and not (filename.startswith("<frozen runpy") and not kept):
            kept.append(trace)
        trace = trace.tb_next
    whole: TracebackType | None = None
    for one in reversed(kept):
        whole = TracebackType(whole, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return whole
