"""Hydra-style folders: a defaults list that brings other files in, composed the way Hydra composes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stayfinite.findings.subjects.config_file import Entry

_MOST_FILES = 50


def defaults_of(entries: list[Entry], text: str, path: Path) -> list[tuple[str, Path]]:
    """(group, file) for every entry of a top-level defaults list that exists beside the file."""
    if not any(entry.path == ("defaults",) for entry in entries):
        return []
    found: list[tuple[str, Path]] = []
    for group, name in _listed(text):
        target = path.parent / group / f"{name}.yaml" if group else path.parent / f"{name}.yaml"
        if target.is_file() and target != path:
            found.append((group.strip("/"), target))
    return found[:_MOST_FILES]


def _listed(text: str) -> list[tuple[str, str]]:
    """The items of the list: `- optimizer: adamw` is (optimizer, adamw), `- base` is ("", base)."""
    found: list[tuple[str, str]] = []
    inside = False
    for line in text.splitlines():
        stripped = line.partition("#")[0].rstrip()
        if stripped == "defaults:":
            inside = True
            continue
        if not inside or not stripped:
            continue
        item = stripped.lstrip()
        if not item.startswith("-"):
            break
        group, colon, name = item[1:].strip().partition(":")
        group = group.replace("override ", "").strip()
        if colon and name.strip() not in ("null", ""):
            found.append((group.partition("@")[0], name.strip().strip("\"'").removesuffix(".yaml")))
        elif not colon and group not in ("_self_",):
            found.append(("", group.strip("\"'").removesuffix(".yaml")))
    return found


def under(group: str, entries: list[Entry]) -> list[Entry]:
    """The entries of a group file as they appear in the composed configuration."""
    parts = tuple(part for part in group.split("/") if part)
    return [replace(entry, path=(*parts, *entry.path)) for entry in entries]
