"""Codes that are no longer given out. A code is never used again; `stayfinite explain` says what replaced it."""

from __future__ import annotations

from typing import Final

RETIRED: Final[dict[str, str]] = {
    "DAT010": "DAT001",
    "RUN014": "RUN001",
    "STA020": "STA011",
    "STA023": "STA008",
    "STA024": "STA010",
    "STA026": "STA012",
}
"""Rules that said the same of a traced run as an older one said of a guarded run."""
