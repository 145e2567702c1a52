"""What an incident says about the machine, and how much memory a step used."""

from __future__ import annotations

import platform
import sys

import torch

import stayfinite
from stayfinite.findings import Json


def environment(device: torch.device) -> dict[str, Json]:
    """Versions and device: what one asks first when a failure does not repeat elsewhere."""
    facts: dict[str, Json] = {
        "stayfinite": stayfinite.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if device.type == "cuda":
        facts["device_name"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


def memory_mb(device: torch.device) -> float | None:
    """Peak memory so far: the device's where it keeps count, else this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
