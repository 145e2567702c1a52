"""Growth by depth: the largest values, followed back through the trace from an overflow to the input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stayfinite.findings.subjects.growth import Growth, LineGain, ModuleStep
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.replay.follower import Follower
from stayfinite.replay.op_journal import Entry, OpJournal

_LONGEST = 5000
_ROWS, _LINES, _WORTH = 256, 4, 1.3
_FAMILY = 3
"""So many modules of one class beside each other, told apart by number, are a repeated block."""


def growth_of(trace: Follower, number: int) -> Growth | None:
    """How the values that overflowed in this birth became so large; None for any other birth."""
    birth, entry = trace.births.get(number), trace.journal.get(number)
    if (
        birth is None
        or entry is None
        or birth.phase != "forward"
        or not birth.transition.startswith("finite->")
    ):
        return None
    chain = _chain(trace.journal, entry)
    if len(chain) < 2:
        return None
    kinds = _kinds(trace)
    ends = [known.absmax for known in chain[:-1]] + [_size_of(birth)]
    return Growth(
        by_depth=tuple(_by_module(chain, ends, kinds)[-_ROWS:]),
        lines=tuple(_by_line(chain, ends)[:_LINES]),
        birth_line=_everywhere(trace.journal, entry),
    )


def _chain(journal: OpJournal, entry: Entry) -> list[Entry]:
    """From the input to the birth: each op with that one of its inputs that was largest, parameters left aside."""
    chain, here = [entry], entry
    while len(chain) < _LONGEST:
        before = _largest_input(journal, here)
        if before is None:
            break
        chain.append(before)
        here = before
    return chain[::-1]


def _largest_input(journal: OpJournal, entry: Entry) -> Entry | None:
    known = [parent for number in entry.parents if (parent := journal.get(number)) is not None]
    fit = [p for p in known if p.origin != "parameter" and p.phase in ("forward", "data") and _counts(p)]
    return max(fit, key=lambda parent: parent.absmax, default=None)


def _counts(entry: Entry) -> bool:
    return 0 < entry.absmax < math.inf and entry.dtype.startswith(("float", "bfloat"))


def _size_of(birth: TracedBirth) -> float:
    """What came out of the birth, or would have in float32."""
    if birth.float32 is not None and birth.float32.absmax is not None and birth.float32.finite:
        return birth.float32.absmax
    return math.inf


def _kinds(trace: Follower) -> dict[str, str]:
    """The class of every module, by the path that the journal knows it by."""
    return {
        f"{type(root).__name__}.{name}" if name else type(root).__name__: type(module).__name__
        for root in trace.modules.roots
        for name, module in root.named_modules()
    }


def _block(path: str | None, kinds: dict[str, str]) -> str:
    """Of the repeated blocks that a module is in the one that is repeated most often; or the module itself."""
    parts, chosen, most = (path or "").split("."), path or "", _FAMILY - 1
    for end in range(2, len(parts) + 1):
        if not parts[end - 1].isdigit():
            continue
        name, parent = ".".join(parts[:end]), ".".join(parts[: end - 1])
        kind, family = kinds.get(name), 0
        while kinds.get(f"{parent}.{family}") == kind and kind is not None:
            family += 1
        if family > most:
            chosen, most = name, family
    return chosen


def _by_module(chain: Sequence[Entry], ends: Sequence[float], kinds: dict[str, str]) -> list[ModuleStep]:
    rows: list[ModuleStep] = []
    given, blocks = ends[0], [_block(entry.module, kinds) for entry in chain]
    for index, (block, size) in enumerate(zip(blocks, ends, strict=True)):
        if index + 1 < len(blocks) and blocks[index + 1] == block:
            continue
        if block:
            rows.append(ModuleStep(block, kinds.get(block, ""), size, size / given))
        given = size
    return rows


def _by_line(chain: Sequence[Entry], ends: Sequence[float]) -> list[LineGain]:
    gains: dict[tuple[str, int], float] = {}
    modules: dict[tuple[str, int], set[str]] = {}
    sources: dict[tuple[str, int], str | None] = {}
    for index in range(1, len(chain)):
        site = chain[index].site
        if site is None or site.file is None or site.line is None or not math.isfinite(ends[index]):
            continue
        key = (site.file, site.line)
        gains[key] = gains.get(key, 0.0) + math.log(ends[index] / ends[index - 1])
        modules.setdefault(key, set()).add(chain[index].module or "")
        sources[key] = site.source
    found = [
        LineGain(*key, sources[key], math.exp(total / len(modules[key])), len(modules[key]))
        for key, total in sorted(gains.items(), key=lambda item: -item[1])
    ]
    return [line for line in found if line.gain >= _WORTH]


def _everywhere(journal: OpJournal, birth: Entry) -> LineGain | None:
    """The same op at the same line, in all modules of this forward pass in which it stayed finite."""
    site = birth.site
    if site is None or site.file is None or site.line is None or birth.op is None:
        return None
    found: dict[str, float] = {}
    for entry in _forward_entries(journal, birth):
        if entry.op is not None and entry.op.name == birth.op.name and entry.site == site and _counts(entry):
            given = _largest_input(journal, entry)
            if given is not None:
                found[entry.module or ""] = entry.absmax / given.absmax
    if not found:
        return None
    mean = math.exp(sum(map(math.log, found.values())) / len(found))
    return LineGain(site.file, site.line, site.source, mean, len(found))


def _forward_entries(journal: OpJournal, birth: Entry) -> Iterable[Entry]:
    known = (journal.get(number) for number in range(max(0, birth.id - 20_000), birth.id))
    return (entry for entry in known if entry is not None and entry.phase == "forward")
