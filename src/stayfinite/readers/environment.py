"""Reads the environment: torch's build and devices, memory, disk, versions and flags. Changes nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from stayfinite.findings.subjects.environment import Device, Environment

_PACKAGES = (
    "stayfinite", "numpy", "safetensors", "transformers", "accelerate", "lightning", "pytorch-lightning",
    "deepspeed", "flash-attn", "xformers", "bitsandbytes", "triton", "torchvision", "torchaudio", "peft",
    "trl",
)  # fmt: skip
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ENABLE_MPS_FALLBACK", "CUDA_VISIBLE_DEVICES", "TORCH_CUDNN_SDPA_ENABLED", "OMP_NUM_THREADS",
    "PYTHONHASHSEED", "CUDA_LAUNCH_BLOCKING", "ACCELERATE_MIXED_PRECISION", "NCCL_ALGO",
)  # fmt: skip


def read_environment(folder: str = ".") -> Environment:
    """This machine, and the disk that `folder` is on."""
    found = Environment(folder=folder)
    for name in _PACKAGES:
        try:
            found.versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found.variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    found.driver = Path("/proc/driver/nvidia/version").exists()
    found.memory_free = _memory_free()
    with suppress(OSError):  # the folder does not exist yet: then nothing is known about its disk
        found.disk_free = shutil.disk_usage(folder).free
    if importlib.util.find_spec("torch") is not None:
        _read_torch(found)
    return found


def _memory_free() -> int | None:
    """Available memory; in a container what its own limit leaves, where that is lower."""
    total = free = None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        table = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
        total, free = table.get("MemTotal"), table.get("MemAvailable")
    except (OSError, ValueError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    if total is not None and limit < total:
        return min(free or limit, max(0, limit - used))
    return free


def _read_torch(found: Environment) -> None:
    import torch

    found.torch = str(torch.__version__)
    hip = getattr(torch.version, "hip", None)
    found.build = f"rocm {hip}" if hip else f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu"
    found.deterministic = torch.are_deterministic_algorithms_enabled()
    found.cudnn_benchmark = bool(torch.backends.cudnn.benchmark)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found.devices.append(_cuda(index, "rocm" if hip else "cuda"))
    elif torch.backends.mps.is_available():
        found.devices.append(Device("Apple GPU", "mps"))
    elif hasattr(torch, "xpu") and torch.xpu.is_available():
        found.devices.append(Device("Intel GPU", "xpu"))


def _cuda(index: int, kind: str) -> Device:
    import torch

    properties = torch.cuda.get_device_properties(index)
    device = Device(properties.name, kind, (properties.major, properties.minor), int(properties.total_memory))
    try:
        device.free = int(torch.cuda.mem_get_info(index)[0])
    except RuntimeError:
        device.free = None  # another process holds the device alone
    # Emulated bfloat16 counts as support in torch from 2.4 on; native needs Ampere.
    device.bfloat16 = kind == "rocm" or properties.major >= 8
    return device
