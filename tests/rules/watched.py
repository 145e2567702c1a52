"""Runs a snippet as the traced second run of `stayfinite run` would, in this process, and returns its incidents."""

from __future__ import annotations

import gc
import textwrap
from pathlib import Path
from types import CodeType
from typing import Any

from rules.traced import HEAD
from stayfinite.findings import Incident
from stayfinite.launch.options import Options
from stayfinite.launch.script import ScriptEnd
from stayfinite.launch.session import Session


def incidents_of(source: str, directory: Path) -> list[Incident]:
    """Watch the whole run: history, optimizers, scalers, schedules, loads, clips."""
    text = HEAD + textwrap.dedent(source).strip() + "\n"
    path = directory / "script.py"
    path.write_text(text, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    gc.collect()
    gc.freeze()  # models of earlier tests are none of this run's
    session = Session(Options(target=str(path), traced=True))
    session.start()
    outcome = _run(compile(text, str(path), "exec"), names)
    incidents = session.finish(outcome)
    assert not session.tracer.follower.trouble, "".join(session.tracer.follower.trouble)
    return incidents


def _run(code: CodeType, names: dict[str, Any]) -> ScriptEnd:
    try:
        exec(code, names)
    except Exception as error:  # noqa: BLE001 - the script may raise whatever it likes
        return ScriptEnd(1, error)
    return ScriptEnd(0)
