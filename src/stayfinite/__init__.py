"""stayfinite keeps PyTorch training runs finite.

The public names are loaded when first used: `import stayfinite` never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stayfinite import data, probe
    from stayfinite.findings import Finding, Incident, Severity
    from stayfinite.guard import Guard, StepResult
    from stayfinite.recover import Criteria, Plan, Policy, RunStopped, Stage

_HOME = {
    "Finding": "stayfinite.findings",
    "Incident": "stayfinite.findings",
    "Severity": "stayfinite.findings",
    "Guard": "stayfinite.guard",
    "StepResult": "stayfinite.guard",
    "Criteria": "stayfinite.recover",
    "Plan": "stayfinite.recover",
    "Policy": "stayfinite.recover",
    "RunStopped": "stayfinite.recover",
    "Stage": "stayfinite.recover",
}

__all__ = [
    "Criteria",
    "Finding",
    "Guard",
    "Incident",
    "Plan",
    "Policy",
    "RunStopped",
    "Severity",
    "Stage",
    "StepResult",
    "__version__",
    "data",
    "probe",
]


def __getattr__(name: str) -> Any:
    # packages of their own: stayfinite.data.check(loader), stayfinite.probe.Probe
    if name in ("data", "probe"):
        return importlib.import_module(f"stayfinite.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'stayfinite' has no attribute {name!r}")
    try:
        module = importlib.import_module(_HOME[name])
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"stayfinite.{name} needs PyTorch, which is not installed here. "
            "Install it with: pip install 'stayfinite[torch]'",
            name="torch",
        ) from missing
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
