"""Launchers: shell scripts, batch jobs and Makefiles. What they ask of a training on its command line; nothing runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ENDINGS = (".sh", ".bash", ".sbatch", ".slurm", ".pbs", ".lsf")
NAMES = ("Makefile", "makefile", "justfile", "Justfile", "Procfile")
_LARGEST = 1 << 20
_PRECISION = re.compile(
    r"(?:^|\s)--?(?:trainer\.)?(mixed[-_]precision|precision|amp[-_]dtype|dtype)[ =]['\"]?([\w.-]+)"
)
_FLAG = re.compile(r"(?:^|\s)--(fp16|bf16)(?:[ =](true|True|1|false|False|0))?(?=\s|$)")
_VARIABLE = re.compile(r"(?:^|\s)ACCELERATE_MIXED_PRECISION=['\"]?(\w+)")
_RATE = re.compile(
    r"(?:^|\s)(?:--)?((?:[\w.]+\.)?(?:lr|learning[-_]rate|max[-_]lr|base[-_]lr))[ =]['\"]?([0-9][0-9.eE+-]*)"
)
_CONFIG = re.compile(
    r"(?:^|\s)--(?:config|cfg|config[-_](?:file|path|name))[ =]['\"]?([\w./-]+\.(?:ya?ml|json|toml|py))"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One option of a command line."""

    name: str
    value: str
    line: int


@dataclass(slots=True)
class Launcher:
    """What one file asks for."""

    path: str
    text: str = ""
    precisions: list[Asked] = field(default_factory=list)
    rates: list[Asked] = field(default_factory=list)
    configs: list[Asked] = field(default_factory=list)


def is_launcher(path: Path) -> bool:
    return path.suffix in ENDINGS or path.name in NAMES


def read_launcher(path: Path) -> Launcher:
    """Raises OSError where it cannot be read; bytes that are no text are passed over."""
    if path.stat().st_size > _LARGEST:
        raise OSError(0, f"{path.stat().st_size / 1e6:.0f} MB is no launcher")
    found = Launcher(str(path), path.read_text(encoding="utf-8", errors="replace"))
    for line, text in _commands(found.text):
        for match in _PRECISION.finditer(text):
            found.precisions.append(Asked(match[1], match[2].rpartition("torch.")[2].lower(), line))
        for match in _FLAG.finditer(text):
            if (match[2] or "true").lower() in ("true", "1"):
                found.precisions.append(Asked(match[1], match[1], line))
        for match in _VARIABLE.finditer(text):
            found.precisions.append(Asked("ACCELERATE_MIXED_PRECISION", match[1].lower(), line))
        for match in _RATE.finditer(text):
            found.rates.append(Asked(match[1], match[2], line))
        for match in _CONFIG.finditer(text):
            found.configs.append(Asked("config", match[1], line))
    return found


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Commands with the line they begin at: continued lines joined, comments left out."""
    begin, held = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw)
        begin = begin or number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        yield begin, held + line
        begin, held = 0, ""
    if held:
        yield begin, held
