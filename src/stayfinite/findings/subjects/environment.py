"""Environment: the machine and its software, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(slots=True)
class Device:
    """One accelerator that torch can see."""

    name: str
    kind: str
    """cuda, rocm, mps, xpu."""
    capability: tuple[int, int] | None = None
    memory: int | None = None
    free: int | None = None
    bfloat16: bool | None = None


@dataclass(slots=True)
class Environment:
    """What decides whether a run can work here at all. None where it could not be found out."""

    torch: str | None = None
    build: str = "none"
    """What torch was built for: cpu, cuda 12.4, rocm 6.1; none where it is not installed."""
    devices: list[Device] = field(default_factory=list)
    driver: bool = False
    """An NVIDIA driver is loaded."""
    versions: dict[str, str] = field(default_factory=dict)
    memory_free: int | None = None
    folder: str = "."
    disk_free: int | None = None
    deterministic: bool | None = None
    cudnn_benchmark: bool | None = None
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables that change numerics or determinism."""

    def torch_version(self) -> tuple[int, int, int] | None:
        """(2, 13, 0) from "2.13.0+cpu"."""
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", self.torch or "")
        return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None

    def device_kinds(self) -> set[str]:
        return {device.kind for device in self.devices}
