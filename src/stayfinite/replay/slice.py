"""The causal slice: from the place where a bad value arrived back to the births that reached it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from stayfinite.findings import PathStep
from stayfinite.findings.subjects.failed_step import FailedStep, Failure, Sink
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.replay import evidence
from stayfinite.replay.follower import Follower
from stayfinite.replay.growth import growth_of
from stayfinite.replay.measure import account, is_bad, is_plain
from stayfinite.replay.narrows import narrows_between
from stayfinite.replay.noticed import COMPARES
from stayfinite.replay.op_journal import Entry

_PATH_LONGEST = 40
_BENIGN_KEPT = 16
_SELECTION_BACK = 8  # ops between what is empty and the comparison that chose its elements
TRIGGER_OF = {
    "loss": "loss",
    "gradient": "gradient",
    "parameter": "parameter",
    "buffer": "parameter",
    "state": "parameter",
    "result": "loss",
    "exception": "exception",
}


def ordered_births(trace: Follower, roots: frozenset[int]) -> list[int]:
    """Births by cause: what the script wrote on purpose last, everything else in the order it happened."""
    known = [number for number in roots if number in trace.births]
    made_nan_of_inf = [trace.births[n].op for n in known if trace.births[n].transition == "inf->nan"]

    def rank(number: int) -> tuple[bool, int]:
        birth = trace.births[number]
        harmless = _is_intended(birth) or (
            birth.transition == "outside"
            and birth.birth.nan == 0
            and bool(made_nan_of_inf)
            and _is_mask(birth.output, made_nan_of_inf)
        )
        return harmless, number

    return sorted(known, key=rank)


def _is_intended(birth: TracedBirth) -> bool:
    """The script wrote it, and not into its data."""
    return birth.transition == "deliberate" and not birth.fact("into_data")


def _is_mask(held: Operand | None, made_nan_of_inf: Sequence[str]) -> bool:
    """It was there before the trace began, and is no sample with an infinity in it: -inf beside one other value, or
    added to the scores of a softmax."""
    if held is None or held.origin in ("parameter", "buffer"):
        return True
    flat = held.summary.min is None or held.summary.min == held.summary.max
    return not held.posinf and (flat or any("softmax" in op for op in made_nan_of_inf))


def path_between(trace: Follower, birth: int, sink: Entry) -> tuple[PathStep, ...]:
    """The ops from the birth to the sink, by the shortest way along bad values."""
    journal = trace.journal
    came_from: dict[int, int] = {}
    queue, seen = deque([sink.id]), {sink.id}
    while queue:
        here = queue.popleft()
        if here == birth:
            break
        entry = journal.get(here)
        for parent in entry.parents if entry is not None else ():
            known = journal.get(parent)
            if known is None or parent in seen:
                continue
            if birth in known.roots or birth in known.cast or known.swell == birth:
                seen.add(parent)
                came_from[parent] = here
                queue.append(parent)
    if birth not in came_from and birth != sink.id:
        return ()
    steps: list[PathStep] = []
    here = birth
    while True:
        entry = journal.get(here)
        if entry is not None:
            site = entry.site
            step = PathStep(
                entry.op.name if entry.op else entry.origin,
                site.file if site else None,
                site.line if site else None,
                entry.module,
            )
            if not steps or steps[-1] != step:
                steps.append(step)
        if here == sink.id:
            break
        here = came_from[here]
    if len(steps) > _PATH_LONGEST:
        half = _PATH_LONGEST // 2
        steps = [*steps[:half], *steps[-half:]]
    return tuple(steps)


def completed(trace: Follower, number: int) -> TracedBirth:
    """A birth with what became known after it: the ops that hid its value."""
    birth = trace.births[number]
    entry = trace.journal.get(number)
    hiders = [
        evidence.producer(hider, trace.journal, 1)
        for hider in (_hiders(trace, entry) if entry is not None else [])
        if hider.phase == "forward"
    ]
    return replace(birth, hidden_by=tuple(hiders[:4])) if hiders else birth


def _follows(trace: Follower, number: int, numbers: list[int]) -> bool:
    """Another birth that was no intention of the script is among the values that this one was made of."""
    entry = trace.journal.get(number)
    before = entry.roots & set(numbers) - {number} if entry is not None else frozenset[int]()
    return any(not _is_intended(trace.births[other]) for other in before)


def emptied_by(trace: Follower, raised: TracedBirth, entry: Entry) -> Entry | None:
    """What a comparison could not see: an op failed for want of elements, chosen by a mask that NaN had made."""
    if all(operand.numel for operand in raised.operands):
        return None
    level, seen = [entry], {entry.id}
    for _ in range(_SELECTION_BACK):
        sources = [known for one in level for n in one.parents if (known := trace.journal.get(n)) is not None]
        for source in sources:
            compares = source.op is not None and source.op.bare in COMPARES
            of = [known for n in source.parents if (known := trace.journal.get(n)) is not None and known.bad]
            if compares and of:
                return of[0]
        level = [source for source in sources if source.id not in seen]
        seen.update(source.id for source in level)
    return None


def _once_each(births: Iterable[TracedBirth]) -> tuple[TracedBirth, ...]:
    """The first birth of each op, line and kind."""
    first: dict[tuple[str, str | None, int | None, str], TracedBirth] = {}
    for birth in births:
        shown = birth.birth
        first.setdefault((shown.op, shown.file, shown.line, birth.transition), birth)
    return tuple(first.values())


def _hiders(trace: Follower, entry: Entry) -> list[Entry]:
    """Ops that read a value with this birth in it and put out finite numbers."""
    numbers = {
        number for bad in trace.journal.latest_bad() if entry.id in bad.roots for number in bad.hidden_by
    }
    return [known for number in sorted(numbers) if (known := trace.journal.get(number)) is not None]


def failed_step(
    trace: Follower,
    sink: Entry,
    kind: str,
    *,
    name: str | None = None,
    tensor: torch.Tensor | None = None,
    failure: Failure | None = None,
) -> FailedStep:
    """The evidence about one bad value that arrived at `sink`."""
    wanted = sink.roots
    if not wanted and sink.swell is not None:
        wanted = frozenset({sink.swell})
    numbers = ordered_births(trace, wanted)
    births = _once_each(
        replace(completed(trace, number), follows=_follows(trace, number, numbers)) for number in numbers
    )
    benign = [
        b for number, b in trace.births.items() if number not in wanted and b.transition != "deliberate"
    ]
    summary = None
    if tensor is not None and is_plain(tensor):
        summary = evidence.summary(name or kind, account(tensor))
    spike = bool(births) and births[0].transition == "amplified"
    return FailedStep(
        step=trace.step,
        phase=births[0].phase if births else sink.phase,
        trigger="spike" if spike else TRIGGER_OF[kind],
        births=births,
        sink=Sink(kind, name, summary),
        path=path_between(trace, numbers[0], sink) if numbers else (),
        narrows=narrows_between(trace, numbers[0], sink) if births and births[0].birth.inf else (),
        benign=tuple(benign[-_BENIGN_KEPT:]),
        failure=failure,
        comparisons=tuple(trace.noticed.comparisons[-8:]),
        growth=growth_of(trace, numbers[0]) if numbers else None,
        usual_size=trace.modules.usual_size,
    )


def hidden_births(trace: Follower) -> tuple[TracedBirth, ...]:
    """The last births that are not deliberate, each with the ops that hid it."""
    numbers = [number for number, birth in trace.births.items() if birth.transition != "deliberate"]
    return tuple(completed(trace, number) for number in numbers[-_BENIGN_KEPT:])


def find_sink(trace: Follower, tensor: torch.Tensor) -> Entry | None:
    """The entry of a bad tensor; None for a healthy one."""
    if not is_bad(tensor):
        return None
    return trace.journal.writer(tensor) or trace.foreign(tensor, None, None, "forward")
