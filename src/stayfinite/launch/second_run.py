"""The last tier: the script once more in a fresh process inside a sandbox, traced, until the failure is located."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from stayfinite.findings import Finding, Incident
from stayfinite.launch.beginning import Beginning
from stayfinite.launch.options import Options
from stayfinite.sandbox import landlock, process, support
from stayfinite.sandbox.process import Kind, ProcessResult

_SLOWDOWN, _AT_LEAST = 15.0, 120.0  # a traced step costs several plain ones
_SHORT = 20.0  # seconds to the failure: so much may be traced from its beginning
_STEPS_BEFORE = 2
_UNLIKE_SHOWN = 3
_WHAT_IT_IS = {
    "namespaces": "in a sandbox, with a copy of its files and no network",
    "landlock": "in a sandbox where it may not write or use the network",
    "none": "without a sandbox, as --allow-rerun asks: what it writes and sends, it writes and sends again",
}


@dataclass(slots=True)
class SecondRun:
    """What a second run gave."""

    incidents: list[Incident] = field(default_factory=list)
    reached: bool = False  # it came to the failing step and through it
    reason: str = ""  # why nothing was located, as a sentence
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FailurePoint:
    """When the first run failed."""

    step: int
    seconds: float
    what: str  # as the beginning of a sentence
    of_the_whole: bool = False  # nothing failed at a step: the second run is judged when it is over, too

    @property
    def is_early(self) -> bool:
        """Early enough for the whole of it to be traced."""
        return self.seconds <= _SHORT


def obstacle(options: Options, beginning: Beginning, failure: FailurePoint) -> str | None:
    """Why there is no second run, as the end of a sentence; None if there can be one."""
    if beginning.ranks > 1:
        return "that takes a second run, and there is none of several ranks; a Guard in the script repeats the step"
    if failure.seconds > options.locate_limit:
        return (
            f"it came {_duration(failure.seconds)} after the start, and a second run may take "
            f"{_duration(options.locate_limit)} (--locate-limit)"
        )
    if options.allow_rerun:
        return None
    ask = "--allow-rerun runs the script again without one, and what it writes and sends, it writes and sends again"
    found = support.sandbox()
    if found.kind == "none":
        return f"that takes a second run, and there is no sandbox for it ({found.reason}); {ask}"
    harm = _beyond_landlock(beginning) if found.kind == "landlock" else None
    if harm is not None:
        return f"that takes a second run, and Landlock cannot keep it harmless: {harm}; {ask}"
    if not _room_on_accelerator():
        return f"that takes a second run, and there is no room for it on the accelerator; {ask}"
    return None


def _beyond_landlock(beginning: Beginning) -> str | None:
    """What the script does that Landlock does not prevent."""
    if beginning.files.sockets:
        return f"the script talks to a socket at {beginning.files.sockets[0]}"
    if beginning.files.sends_signals and landlock.abi() < landlock.SIGNALS_FROM:
        return "the script sends signals to other processes"
    return None


def _room_on_accelerator() -> bool:
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return free > torch.cuda.max_memory_allocated()


def run_again(
    options: Options, beginning: Beginning, failure: FailurePoint, say: Callable[[str], None]
) -> SecondRun:
    """Run the script again under the tracer; its output is thrown away.

    A run that failed early is traced from its first op. One that took long is traced from shortly before the
    failing step, and from the first op only if the bad value turns out to be older than that.
    """
    kind = sandbox_kind(options)
    limit = min(options.locate_limit, max(_AT_LEAST, _SLOWDOWN * failure.seconds))
    say(
        f"{failure.what}; running the script again to find where, {_WHAT_IT_IS[kind]}, for at most "
        f"{_duration(limit)}."
    )
    end = time.monotonic() + limit
    first = max(0, failure.step - _STEPS_BEFORE) if not failure.is_early else 0
    found = _run(options, beginning, failure, first, end, kind)
    if first > 0 and any(_came_from_before(incident) for incident in found.incidents):
        again = _run(options, beginning, failure, 0, end, kind)
        found = again if again.incidents else found
    return found


def _came_through_an_update(incident: Incident) -> bool:
    """A loss that is bad through what a backward pass or an update made: of a step before, for its own comes later."""
    return incident.trigger == "loss" and incident.phase in ("backward", "optimizer", "state")


def without_its_own_state(
    incidents: list[Incident], bad_state: set[tuple[str, str]], refused: Mapping[int, str]
) -> list[Incident]:
    """Nothing is refused in a second run: state that went bad there and not in the first one is no finding of the run.

    What comes first stays where the first run refused nothing: a batch that the script itself left out may have
    changed buffers, which were put back.
    """
    for incident in incidents:
        own = [finding for finding in incident.findings if _state_of(finding) <= bad_state]
        if (
            incident.findings
            and incident.findings[0] not in own
            and (incident.step not in refused or not own)
        ):
            own.insert(0, incident.findings[0])
        incident.findings[:] = own
    return incidents


def on_the_same_course(incidents: list[Incident], refused: Mapping[int, str]) -> list[Incident]:
    """What failed after a step that the first run refused counts only where that run, too, failed in this way.

    The second one made the update: it has state that the first one never had, and went on from there. `refused`:
    triggers by step.
    """
    first = min(refused, default=None)

    def as_in_the_first(one: Incident) -> bool:
        if first is None or one.step < first:
            return True
        if refused.get(one.step) == one.trigger:
            return one.step == first or not _came_through_an_update(one)
        return one.step == first and one.trigger != "parameter"

    return [one for place, one in enumerate(incidents) if place == 0 or as_in_the_first(one)]


def as_the_first_run_had_it(incidents: list[Incident], own: list[Finding]) -> list[Incident]:
    """What both runs show of the whole run, such as how often a norm was bad, is reported as the first one had it."""
    known = {(finding.code, finding.file, finding.line): finding for finding in own}
    for incident in incidents:
        for place, finding in enumerate(incident.findings[1:], 1):
            first = known.get((finding.code, finding.file, finding.line))
            if first is not None:
                incident.findings[place] = replace(finding, message=first.message, evidence=first.evidence)
    return incidents


def _state_of(finding: Finding) -> set[tuple[str, str]]:
    """Owner and name of the state that it is about."""
    tensors = finding.evidence.get("tensors")
    told = tensors if isinstance(tensors, (list, tuple)) else ()
    return {
        (tensor["owner"], tensor["name"]) for tensor in told if isinstance(tensor, dict) and "owner" in tensor
    }


def sandbox_kind(options: Options) -> Kind:
    """A sandbox that refuses writing is of no use to somebody who allows it."""
    best = support.sandbox().kind
    return "none" if options.allow_rerun and best != "namespaces" else best


def _came_from_before(incident: Incident) -> bool:
    """The bad value was in the weights already when tracing began."""
    return incident.birth is not None and incident.birth.op in ("parameter", "buffer", "state", "outside")


def once(options: Options, beginning: Beginning, failure: FailurePoint, end: float) -> SecondRun:
    """Run the script again, traced from its first op, until `end`."""
    return _run(options, beginning, failure, 0, end, sandbox_kind(options))


def _run(
    options: Options, beginning: Beginning, failure: FailurePoint, first: int, end: float, kind: Kind
) -> SecondRun:
    past, unlike = beginning.files.past()
    with tempfile.TemporaryDirectory(prefix="stayfinite-") as folder:
        exchange = Path(folder)
        state, output, ended = exchange / "state", exchange / "incidents.json", exchange / "ended.json"
        stop = None if failure.of_the_whole else failure.step + 1
        beginning.save(state, trace_from_step=first, stop_after_step=stop, ended=str(ended))
        command = ["run", "--format", "json", "--output", str(output)]
        command += ["--max-incidents", str(options.max_incidents)]
        command += [*(["-m"] if options.module else []), options.target, *options.arguments]
        limit = max(1.0, end - time.monotonic())
        done = in_fresh_process(
            command, beginning.again(state), limit, kind, beginning.folder, exchange, past
        )
        result = SecondRun(incidents=_read_incidents(output))
        told = json.loads(ended.read_text()) if ended.exists() else {}
    result.reached = bool(told) and told["step"] > failure.step
    if not result.incidents:
        result.reason = _reason(done, told, failure, limit, result.reached)
    unlike += done.unlike if kind == "namespaces" else ()
    if kind == "landlock" and (past.missing or past.earlier):
        result.remarks.append(
            "The second run saw the files as the first had left them (Landlock hides nothing)."
        )
    elif kind == "none" and (past.missing or past.earlier):
        result.remarks.append("The second run saw the files as the first had left them.")
    elif unlike:
        shown = ", ".join(unlike[:_UNLIKE_SHOWN]) + (" ..." if len(unlike) > _UNLIKE_SHOWN else "")
        result.remarks.append(
            f"The second run could not see these files as the first had found them: {shown}"
        )
    return result


def _read_incidents(output: Path) -> list[Incident]:
    if not output.exists():
        return []
    data = json.loads(output.read_text(encoding="utf-8"))
    return [Incident.from_json(item) for item in data["incidents"]]


def _reason(
    done: ProcessResult, told: dict[str, Any], failure: FailurePoint, limit: float, reached: bool
) -> str:
    """One sentence: what became of the second run."""
    if done.status == "timed out":
        return f"the second run timed out after {limit:.0f} s"
    if reached:
        return f"a second, traced run came through step {failure.step} without a bad value"
    if told.get("error"):
        return f"the second run ended with {told['error']}"
    if told:
        return f"the second run ended at step {told['step']}, before the failing one ({failure.step})"
    if done.status == "not started":
        return f"the second run could not be started: {done.reason}"
    return f"the second run {done.sentence}"


def in_fresh_process(
    command: Sequence[str],
    environment: dict[str, str],
    seconds: float,
    kind: Kind,
    folder: str,
    exchange: Path,
    past: Any = None,
) -> ProcessResult:
    """`stayfinite` with this command; silent, for the script has said everything once."""
    progress = _Progress(seconds)
    try:
        return process.run(
            process.python_module("stayfinite", *command),
            kind,
            seconds,
            environment=environment,
            folder=folder,
            exchange=exchange,
            past=past,
            progress=progress,
        )
    finally:
        progress.close()


class _Progress:
    """A line that counts the seconds on a terminal, one line a minute elsewhere."""

    def __init__(self, limit: float) -> None:
        self._limit, self._said = limit, 0

    def __call__(self, seconds: float) -> None:
        text = f"stayfinite: second run, {seconds:.0f} s of at most {self._limit:.0f} s"
        if sys.stderr.isatty():
            print(f"\r{text}", end="\x1b[K", file=sys.stderr, flush=True)
        elif int(seconds) // 60 > self._said:
            self._said = int(seconds) // 60
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{math.ceil(seconds / 60)} min"
