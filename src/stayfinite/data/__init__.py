"""Data before it meets a model: files of samples, and what a loader hands out.

import stayfinite
verdict = stayfinite.data.check(loader, n=50)     # the first 50 batches
if not verdict.healthy: print(verdict.findings[0].message)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stayfinite.data.examine import DataVerdict, examine_data
    from stayfinite.data.loader import check
    from stayfinite.findings.subjects.data_set import Expectation
    from stayfinite.readers.data import UnreadableData

_HOME = {
    "DataVerdict": "stayfinite.data.examine",
    "Expectation": "stayfinite.findings.subjects.data_set",
    "UnreadableData": "stayfinite.readers.data",
    "check": "stayfinite.data.loader",
    "examine_data": "stayfinite.data.examine",
}

__all__ = ["DataVerdict", "Expectation", "UnreadableData", "check", "examine_data"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'stayfinite.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
