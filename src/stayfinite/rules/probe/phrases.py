"""How rules about a probed model say where a bad value was born, and group trials that fail at one place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stayfinite.findings.subjects.probed_model import Located, Trial


def born(located: Located) -> str:
    """ ": log at `loss = -p.log().mean()` gives it (log of 3 zeros)", or nothing."""
    if located.op is None:
        return f": {located.message}" if located.message else ""
    source = f" in `{located.source}`" if located.source else ""
    phase = " in the backward pass" if located.phase == "backward" else ""
    why = f" ({located.message})" if located.message else ""
    return f"; it is born{phase} at {located.op}{source}{why}"


def place(located: Located) -> dict[str, Any]:
    """The keywords of `Rule.finding` that say where."""
    return {"file": located.file, "line": located.line}


def evidence(trial: Trial, **more: Any) -> dict[str, Any]:
    return {
        "battery": trial.battery,
        "condition": trial.condition,
        "outcome": trial.outcome,
        "op": trial.located.op,
        "module": trial.located.module,
        "explained_by": trial.located.explained_by,
        **more,
    }


def by_place(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Trials that fail at the same line and operation are one finding."""
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        where = trial.located
        key = (where.file, where.line) if where.line is not None else (trial.outcome, trial.what)
        groups.setdefault(key, []).append(trial)
    return list(groups.values())


def conditions(trials: list[Trial], most: int = 4) -> str:
    names = list(dict.fromkeys(trial.condition for trial in trials))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
