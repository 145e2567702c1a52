"""drill: runs the script in the sandbox as often as it takes to see every fault, and sums up."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stayfinite.findings.drill import FAULTS, DrilledFault, DrillReport
from stayfinite.launch.drill import outcome
from stayfinite.launch.drill.journal import read
from stayfinite.launch.options import Options
from stayfinite.sandbox import process, support
from stayfinite.sandbox.process import ProcessResult

_VALUES = [name for name in FAULTS if name != "kill while saving"]
_ENOUGH_SAVES = 2  # the first shows how the script saves, the second is the one that is hit


class DrillRefused(Exception):
    """There is nothing to drill, or nowhere to do it: one sentence."""


@dataclass(frozen=True, slots=True)
class DrilledRun:
    """One run of the script with faults: its journal, and how it ended."""

    lines: list[dict[str, Any]]
    result: ProcessResult
    last_words: str

    @property
    def ending(self) -> str:
        """In words, with the script's own error where there is one."""
        said = f": {self.last_words}" if self.last_words and self.result.exit_code else ""
        return self.result.sentence + said

    @property
    def updates(self) -> int:
        return max((int(line.get("updates", line.get("at", 0)) or 0) for line in self.lines), default=0)


def drill(options: Options, after: int, say: Callable[[str], None]) -> DrillReport:
    """Inject every fault after `after` updates, one after another; the user's files are not touched."""
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise DrillRefused("a fire drill is for one process; start it without the distributed launcher")
    found = support.sandbox()
    if found.kind == "none":
        raise DrillRefused(
            f"a fire drill needs a sandbox, so that nothing of yours is touched, and there is none here: {found.reason}"
        )
    say(
        f"fire drill of {options.target}, in a sandbox with a copy of its files and no network; each run may take "
        f"{options.locate_limit:.0f} s (--locate-limit)."
        if found.kind == "namespaces"
        else f"fire drill of {options.target}, in a sandbox where it may not write (Landlock); each run may take "
        f"{options.locate_limit:.0f} s (--locate-limit)."
    )
    faults, script = _value_faults(options, after, say, found.kind)
    say("killing it while it saves")
    faults.append(_save_fault(options, found.kind))
    return DrillReport(options.target, after, tuple(faults), script)


def _value_faults(
    options: Options, after: int, say: Callable[[str], None], kind: str
) -> tuple[list[DrilledFault], str]:
    """All in one run as long as the script survives; a new one for what is left where it does not."""
    left, script = list(_VALUES), ""
    done: dict[str, DrilledFault] = {}
    while left:
        say(f"injecting {', then '.join(FAULTS[name] for name in left)}")
        run = _run(options, {"faults": left, "after": after})
        told: dict[str, dict[str, Any]] = {}
        for line in run.lines:
            if "fault" in line:
                told[line["fault"]] = {**told.get(line["fault"], {}), **line}
                script = line.get("script", script)
        if not done and not told:
            raise DrillRefused(_why_nothing(options, after, run))
        first, begun = left[0], [name for name in left if name in told or name == left[0]]
        for name in begun:
            seen = told.get(name, {"fault": name})
            done[name] = outcome.of_values(seen, run.ending, may_write=kind == "namespaces")
        if begun != [first] and not told[begun[-1]].get("over") and not told[begun[-1]]["compared"]:
            del done[begun.pop()]  # the script ended in its step: a run of its own shows whether by itself
        left = [name for name in left if name not in begun]
    return [done[name] for name in _VALUES], script


def _ended_well(run: DrilledRun) -> bool:
    return run.result.status == "finished" and run.result.exit_code == 0


def _why_nothing(options: Options, after: int, run: DrilledRun) -> str:
    if run.result.status == "not started":
        return f"the sandbox could not be started: {run.result.reason}"
    if run.result.status == "timed out":
        return (
            f"{options.target} made {run.updates} updates in {options.locate_limit:.0f} s, and the drill waits for "
            f"{after}; give it longer (--locate-limit SECONDS)"
        )
    if not _ended_well(run):
        return (
            f"{options.target} {run.ending} before the drill began (no network and a copy of its files there)"
        )
    if run.updates == 0:
        return f"{options.target} makes no optimizer step, so there is nothing to drill"
    fewer = f"; --drill {run.updates - 1}" if run.updates > 1 else ""
    return f"{options.target} makes only {run.updates} updates, and the drill begins after {after}{fewer}"


def _save_fault(options: Options, kind: str) -> DrilledFault:
    if kind != "namespaces":
        return outcome.unknown(
            "kill while saving", "not injected: in this sandbox (Landlock) the script may not write"
        )
    run = _run(options, {"faults": ["kill while saving"], "kill_at": _ENOUGH_SAVES, "renames": False})
    looked = _looked(run)
    saves = [line for line in run.lines if "path" in line]
    if saves and not any("killing" in line for line in run.lines):  # it saves once: that one is hit
        renames = bool(looked and looked["renamed"])
        run = _run(options, {"faults": ["kill while saving"], "kill_at": 1, "renames": renames})
        looked = _looked(run)
    return outcome.of_save(run.lines, looked, run.ending, timed_out=run.result.status == "timed out")


def _looked(run: DrilledRun) -> dict[str, Any] | None:
    return next((line["looked"] for line in run.lines if "looked" in line), None)


def _run(options: Options, spec: dict[str, Any]) -> DrilledRun:
    """One process inside the sandbox; only its journal and record come out."""
    with tempfile.TemporaryDirectory(prefix="stayfinite-") as folder:
        exchange = Path(folder)
        spec = {
            **spec,
            "target": options.target,
            "arguments": list(options.arguments),
            "module": options.module,
            "policy": options.policy,
            "clip": options.clip,
            "journal": str(exchange / "journal.jsonl"),
            "run_dir": str(exchange / "run"),
        }
        (exchange / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        with (exchange / "stderr").open("wb") as errors:
            result = process.run(
                process.python_module("stayfinite.launch.drill.inside", str(exchange / "spec.json")),
                support.sandbox().kind,
                options.locate_limit,
                exchange=exchange,
                stderr=errors.fileno(),
                progress=_progress,
            )
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        return DrilledRun(read(exchange / "journal.jsonl"), result, _last_line(exchange / "stderr"))


def _progress(seconds: float) -> None:
    text = f"stayfinite: drill, {seconds:.0f} s"
    if sys.stderr.isatty():
        print(f"\r{text}", end="\x1b[K", file=sys.stderr, flush=True)
    elif int(seconds) % 60 == 59:
        print(text, file=sys.stderr, flush=True)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else ""
