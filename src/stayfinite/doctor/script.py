"""Which source trains: the one to name in commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stayfinite.findings.subjects.source_file import SourceFile


def training_script(sources: Sequence[SourceFile]) -> str | None:
    """A file that is run as a script and calls backward or a trainer; one called train before others."""
    found = [source for source in sources if _runs(source) and _trains(source)]
    return min(found, key=_order).path if found else None


def _runs(source: SourceFile) -> bool:
    """By a test of __name__, or because the module's own code trains."""
    return "__main__" in source.text or any(
        event.what == "backward" for facts in source.functions if not facts.name for event in facts.events
    )


def _trains(source: SourceFile) -> bool:
    return bool({"backward", "fit", "train", "train_step", "Trainer"} & source.calls) or any(
        event.what == "backward" for facts in source.functions for event in facts.events
    )


def _order(source: SourceFile) -> tuple[bool, int, int, str]:
    path = Path(source.path)
    return not path.stem.startswith("train"), len(path.parts), len(path.stem), source.path
