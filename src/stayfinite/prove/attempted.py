"""Attempted: a candidate with what came of it, how good that is, and the patch that it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stayfinite.findings.trial import Tried
from stayfinite.remedies.remedy import Remedy
from stayfinite.remedies.source import Edit, unified_diff


@dataclass(slots=True)
class Attempted:
    """A candidate with what came of it, while others are still being tried."""

    remedies: tuple[Remedy, ...]
    texts: dict[str, str]  # the edited files, without anything that only looks
    tried: Tried
    learns: bool | None = None
    spans: tuple[tuple[int, int], ...] = ()
    edits: tuple[Edit, ...] = ()
    raised: bool = False  # it could not even be computed
    finished: bool = True  # it had time to end


def quality(one: Attempted) -> tuple[object, ...]:
    """Proved before failed; exact before not; the remedy that is meant for it before the crude one."""
    tried = one.tried
    moved = tried.distortion if tried.distortion is not None else 1e-3
    crude = any(r.trains_otherwise for r in one.remedies) or tried.verdict in ("postpones", "unclear")
    rank = max((r.rank for r in one.remedies), default=9)
    # At the brink the plain form itself is inexact (the logarithm of a subnormal number), an exact form is not.
    exact = 5e-3 if rank <= 1 else 1e-5
    rough = 0 if moved < exact else (1 if moved < 1e-2 else 2)
    return (
        tried.control,
        not tried.proved,
        crude,
        rough,
        rank,
        len(one.remedies),
        moved,
    )


def reach(ways: Sequence[Attempted]) -> int:
    """How far the best of these came: it raised, was not finite, was finite, was proved."""
    return max((1 + (not one.raised) + one.tried.finite + one.tried.proved for one in ways), default=0)


def patch_of(best: Attempted) -> str | None:
    diffs = []
    for file, text in best.texts.items():
        before = Path(file).read_text(encoding="utf-8")
        if before != text:
            diffs.append(unified_diff(before, text, file))
    return "".join(diffs) or None
