"""The narrows of a failure: a logarithm or a ratio that every way from the birth to the failing value passes.

An exponential that reaches the loss through nothing but a logarithm, or a ratio of exponentials, has a form that
neither overflows nor loses its gradient. One that also reaches it in another way (a rate that is itself a term of the
loss) has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from stayfinite.findings.subjects.traced_birth import bare_op
from stayfinite.replay.follower import Follower
from stayfinite.replay.op_journal import Entry

_LOGARITHMS: Final = ("log", "log2", "log10", "log1p")


def narrows_between(trace: Follower, birth: int, sink: Entry) -> tuple[str, ...]:
    """ "log" and "ratio", as far as no bad value goes from the birth to the sink without one."""
    found = []
    if not _reached(trace, birth, sink, _is_logarithm):
        found.append("log")
    if not _reached(trace, birth, sink, lambda entry: _is_ratio(trace, entry)):
        found.append("ratio")
    return tuple(found)


def _is_logarithm(entry: Entry) -> bool:
    return _forward_name(entry) in _LOGARITHMS


def _is_ratio(trace: Follower, entry: Entry) -> bool:
    """Both sides of the division hold bad values: Inf / Inf."""
    if _forward_name(entry) != "div":
        return False
    sides = [trace.journal.get(number) for number in dict.fromkeys(entry.parents)]
    return sum(side is not None and bool(side.roots) for side in sides) >= 2


def _forward_name(entry: Entry) -> str:
    return bare_op(entry.op.name) if entry.op is not None and entry.phase == "forward" else ""


def _reached(trace: Follower, birth: int, sink: Entry, closed: Callable[[Entry], bool]) -> bool:
    """Whether the birth leads to the sink along bad values when these ops let nothing through."""
    queue, seen = deque([sink.id]), {sink.id}
    while queue:
        here = queue.popleft()
        if here == birth:
            return True
        entry = trace.journal.get(here)
        if entry is None or closed(entry):
            continue
        for parent in entry.parents:
            known = trace.journal.get(parent)
            if known is not None and parent not in seen and birth in known.roots:
                seen.add(parent)
                queue.append(parent)
    return False
