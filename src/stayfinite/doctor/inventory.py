"""What a project holds: logs, checkpoints, data, launchers and run folders. Sources and configurations are lint's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stayfinite.lint.collect import PASSED_BY
from stayfinite.logs.examine import LOG_ENDINGS
from stayfinite.readers.checkpoint import Location, Unreadable, locate
from stayfinite.readers.checkpoint.locate import CERTAIN_ENDINGS
from stayfinite.readers.data import find_data
from stayfinite.readers.launcher import is_launcher
from stayfinite.report.record.folder import INCIDENT

_NEVER = PASSED_BY - {"wandb", "mlruns", "build", "dist"} | {".stayfinite"}
_DATA_WORDS = re.compile(
    r"(^|[^a-z])(data(sets?)?|images?|train|val(id(ation)?)?|test|labels?|features?|embed(dings?)?|samples?)([^a-z]|$)",
    re.IGNORECASE,
)
_TEXT_LOOKED_AT = 1 << 16
_DEEPEST = 16


@dataclass(slots=True)
class Inventory:
    """The files of a project by what they are; tables (.csv) may turn out to be logs or data."""

    root: str
    logs: list[str] = field(default_factory=list)
    checkpoints: list[Location] = field(default_factory=list)
    data: list[tuple[str, list[str] | None]] = field(default_factory=list)
    launchers: list[Path] = field(default_factory=list)
    incidents: list[Path] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)


def take_inventory(root: str) -> Inventory:
    """Walk the folder once. Links to folders are not followed; what cannot be opened is named."""
    found = Inventory(root)
    for path in _files(Path(root), found.passed_over):
        name = path.name
        if (
            name.endswith(LOG_ENDINGS)
            or ".tfevents." in name
            or name == "trainer_state.json"
            or (path.suffix == ".txt" and _speaks_of_loss(path))
        ):
            found.logs.append(str(path))
        elif name == INCIDENT:
            found.incidents.append(path)
        elif is_launcher(path):
            found.launchers.append(path)
    found.checkpoints = [
        place for place in _locations(root, 0, found.passed_over) if _wanted(place.path, root)
    ]
    found.data = [item for item in _data(root) if _wanted(item[0], root)]
    return found


def _files(root: Path, passed_over: list[str]) -> Iterator[Path]:
    def unreadable(trouble: OSError) -> None:
        passed_over.append(f"{trouble.filename}: cannot be opened ({trouble.strerror})")

    for place, folders, files in os.walk(root, onerror=unreadable, followlinks=False):
        depth = len(Path(place).relative_to(root).parts)
        folders[:] = sorted(name for name in folders if name not in _NEVER and depth < _DEEPEST)
        for name in sorted(files):
            path = Path(place, name)
            if path.is_file():
                yield path
            elif name.endswith((*LOG_ENDINGS, *CERTAIN_ENDINGS)) and not name.endswith(".json"):
                passed_over.append(f"{path}: not a regular file")  # lint names sources and configurations


def _speaks_of_loss(path: Path) -> bool:
    try:
        with path.open("rb") as handle:
            return re.search(rb"\bloss\b[^\n]{0,20}\d", handle.read(_TEXT_LOOKED_AT)) is not None
    except OSError:
        return False  # named by the walk, or not worth a word: it is no log by its name


def _locations(folder: str, depth: int, passed_over: list[str]) -> list[Location]:
    """The checkpoints below a folder; one folder that cannot be opened does not hide the others."""
    try:
        return locate([folder])
    except Unreadable:
        return []  # none here
    except OSError as trouble:
        passed_over.append(f"{trouble.filename or folder}: cannot be opened ({trouble.strerror})")
    found: list[Location] = []
    try:
        children = sorted(
            child for child in Path(folder).iterdir() if child.is_dir() and not child.is_symlink()
        )
    except OSError:
        return found
    if depth < _DEEPEST:
        for child in children:
            found += _locations(str(child), depth + 1, passed_over)
    return found


def _wanted(path: str, root: str) -> bool:
    return not _NEVER.intersection(Path(path).relative_to(root).parts)


def _data(root: str) -> Iterator[tuple[str, list[str] | None]]:
    """Files that can only be data; tables and pictures only where their names say so (plots are pictures too)."""
    for path, images in find_data(root):
        inner = str(Path(path).relative_to(root))
        speaks = _DATA_WORDS.search(inner.replace("_", "-")) is not None
        if images is not None or path.lower().endswith((".csv", ".tsv")):
            if speaks:
                yield path, images
        elif path.lower().endswith((".parquet", ".npy", ".npz")) or not path.lower().endswith(
            CERTAIN_ENDINGS
        ):
            yield path, None
