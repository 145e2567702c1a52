"""A model before its training: five batteries, a directed search for an input that fails, a run under stress.

from stayfinite.probe import Probe, examine_model
def factory() -> Probe: return Probe(model, batch, loss, optimizer)
verdict = examine_model(factory())
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stayfinite.probe.examine import ProbeVerdict, examine_model
    from stayfinite.probe.factory import WrongFactory, load
    from stayfinite.probe.search.written_test import failure_on
    from stayfinite.probe.target import Probe

_HOME = {
    "Probe": "stayfinite.probe.target",
    "ProbeVerdict": "stayfinite.probe.examine",
    "WrongFactory": "stayfinite.probe.factory",
    "examine_model": "stayfinite.probe.examine",
    "failure_on": "stayfinite.probe.search.written_test",
    "load": "stayfinite.probe.factory",
}

__all__ = ["Probe", "ProbeVerdict", "WrongFactory", "examine_model", "failure_on", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'stayfinite.probe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
