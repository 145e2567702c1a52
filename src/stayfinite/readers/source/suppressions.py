"""`# stayfinite: ignore` and `# stayfinite: ignore[CODE, CODE]`: what a line asks not to be told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_COMMENT = re.compile(r"#\s*stayfinite:\s*ignore(-file)?(?:\[([^\]]*)\])?", re.IGNORECASE)
EVERYTHING = "*"


def suppressions(lines: Sequence[str]) -> dict[int, frozenset[str]]:
    """Line -> codes (or "*"). Line 0 holds what `ignore-file` asks for the whole file."""
    found: dict[int, frozenset[str]] = {}
    for number, line in enumerate(lines, 1):
        if "stayfinite:" not in line:
            continue
        for match in _COMMENT.finditer(line):
            listed = match.group(2)
            codes = frozenset(
                item.strip().upper() for item in (listed or EVERYTHING).split(",") if item.strip()
            )
            place = 0 if match.group(1) else number
            found[place] = found.get(place, frozenset()) | codes
    return found


def is_suppressed(found: Mapping[int, frozenset[str]], code: str, *lines: int) -> bool:
    """Whether a finding with this code on one of these lines is not to be told."""
    for line in (0, *lines):
        codes = found.get(line)
        if codes and (EVERYTHING in codes or any(code.startswith(item) for item in codes)):
            return True
    return False
