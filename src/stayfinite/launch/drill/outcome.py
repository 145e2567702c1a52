"""From what a drilled process told to an answer: caught, undone, survived."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stayfinite.findings.drill import FAULTS, Answer, DrilledFault
from stayfinite.launch.drill.driver import GOES_ON

_NAMED = 3
_NOT_WRITTEN = ("PermissionError", "ermission denied", "cannot be opened")  # python, libraries, torch.save


def unknown(fault: str, why: str) -> DrilledFault:
    return DrilledFault(fault, why, "unknown", "unknown", "unknown")


def of_values(told: dict[str, Any], ending: str, *, may_write: bool = True) -> DrilledFault:
    """One of the faults in values, from its last lines. `may_write`: the sandbox lets the script write files."""
    fault, injected = told["fault"], told.get("injected", "")
    if not injected:
        return unknown(fault, f"not injected: the script {ending} before {FAULTS[fault]} could be put in")
    compared: dict[str, list[str]] = told.get("compared", {})
    changed = {kind: names for kind, names in compared.items() if names}
    bad, applied = told.get("bad") or [], int(told.get("applied_after", 0))
    settled = told["phase"] in ("following", "settling") and bool(compared)
    details = [
        f"{kind} changed: {', '.join(names[:_NAMED])}{' ...' if len(names) > _NAMED else ''}"
        for kind, names in changed.items()
    ]
    by = _by_whom(told, not changed)
    goes_on = applied >= GOES_ON or (applied > 0 and ending == "ended with exit code 0")
    if not goes_on and not bad and not may_write and any(words in ending for words in _NOT_WRITTEN):
        why = f"the script {ending}; in this sandbox (Landlock) it may not write, so nothing is known of what follows"
        caught: Answer = "yes" if settled and by else "unknown"
        undone: Answer = "unknown" if not settled else "no" if changed else "yes"
        kinds = {kind: not names for kind, names in compared.items()}
        return DrilledFault(
            fault, injected, caught, undone, "unknown", by if settled else "", kinds, (*details, why)
        )
    if not settled:
        stopped = "stayfinite" if ": stayfinite: " in ending else "the script"
        return DrilledFault(
            fault,
            injected,
            "unknown" if "timed out" in ending else "yes",
            "not applicable",
            "no",
            "" if "timed out" in ending else f"{stopped}, which ends",
            details=(f"the script {ending} in the step that was hit",),
        )
    if bad:
        details.append(f"not finite now: {', '.join(bad)}")
    elif not by and changed:
        details.append("the update was applied, and the weights are finite: the fault did not reach them")
    if not goes_on:
        details.append(f"{applied} updates were applied afterwards; the script {ending}")
    harmless = not by and not bad
    return DrilledFault(
        fault,
        injected,
        "not applicable" if harmless else "yes" if by else "no",
        "not applicable" if harmless else "yes" if not changed else "no",
        "yes" if goes_on and not bad else "no",
        by,
        {kind: not names for kind, names in compared.items()},
        tuple(details),
    )


def _by_whom(told: dict[str, Any], unchanged: bool) -> str:
    """Who kept the update from the weights: between the script's call and the optimizer there is only the guard."""
    if told.get("asked"):
        return "stayfinite" if unchanged or not told.get("stepped") else ""
    if told.get("asked_scaler"):
        return "GradScaler"
    return "the script" if unchanged else ""


def of_save(
    lines: list[dict[str, Any]], looked: dict[str, Any] | None, ending: str, *, timed_out: bool
) -> DrilledFault:
    """The kill while saving, from what was left on disk."""
    fault = "kill while saving"
    if timed_out:
        return unknown(fault, f"not injected: the script {ending} and had not saved by then")
    saved = any("path" in line for line in lines)
    if not saved:
        ended = next((line["ended"] for line in lines if "ended" in line), None)
        if ended != 0:
            return unknown(fault, f"not injected: the script {ending} before it saved anything")
        return DrilledFault(
            fault,
            "not injected: no checkpoint was being written (torch.save, safetensors)",
            "not applicable",
            "not applicable",
            "not applicable",
            details=("a kill at any moment loses the whole run",),
        )
    files = looked["files"] if looked else None
    if files is None or files["torn"] is None:
        return unknown(fault, "the file that was being written could not be told")
    if any("passed" in line for line in lines):
        return unknown(
            fault, f"not injected: {_short(files['torn']['path'])} was written in a way that was not heard"
        )
    torn, kept = files["torn"], files["kept"]
    whole = [one for one in kept if one["whole"]]
    injected = f"after {torn['size']} bytes of {_short(torn['path'])}"
    if files["temporary"] and (not kept or kept[-1]["whole"]):
        left = f"{_short(kept[-1]['path'])} is whole" if kept else "there was no earlier checkpoint to damage"
        return DrilledFault(
            fault,
            injected,
            "not applicable",
            "not applicable",
            "yes",
            details=(f"written beside and renamed: {left}",),
        )
    if torn["whole"]:
        where = f"while {_short(torn['path'])} was being written"
        return DrilledFault(
            fault,
            where,
            "not applicable",
            "not applicable",
            "yes",
            details=("what is under that name is whole",),
        )
    details = [f"{_short(torn['path'])} is damaged: {torn['problem']}"]
    older = [one for one in whole if one["path"] != torn["path"]]
    details.append(
        f"the newest whole one is {_short(older[-1]['path'])}" if older else "no whole checkpoint is left"
    )
    details.append("write to another name in the same folder, then os.replace(other, name)")
    return DrilledFault(fault, injected, "no", "no", "no", details=tuple(details))


def _short(path: str) -> str:
    """As the user would write it."""
    place = os.path.relpath(path)
    return path if place.startswith("..") else str(Path(place))
