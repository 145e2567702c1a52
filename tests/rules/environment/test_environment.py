"""The environment check: this machine is read as it is, and each rule fires on its case only."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stayfinite.findings import examine
from stayfinite.findings.subjects.environment import Device, Environment
from stayfinite.readers.environment import read_environment

GB = 1 << 30
H100 = Device("NVIDIA H100", "cuda", (9, 0), 80 * GB, 78 * GB, True)
V100 = Device("Tesla V100", "cuda", (7, 0), 32 * GB, 31 * GB, False)
HEALTHY = Environment(
    "2.9.1+cu128",
    "cuda 12.8",
    [H100],
    driver=True,
    memory_free=60 * GB,
    disk_free=400 * GB,
    deterministic=False,
    cudnn_benchmark=False,
)


def codes(environment: Environment) -> list[str]:
    return [finding.code for finding in examine(environment)]


def test_this_machine(tmp_path: Path) -> None:
    found = read_environment(str(tmp_path))
    assert found.torch == torch.__version__ and found.torch_version() == (2, 13, 0)
    assert found.disk_free and found.memory_free and found.versions["stayfinite"]
    assert (found.build == "cpu") == (torch.version.cuda is None)
    assert found.deterministic is False


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert read_environment(str(tmp_path / "none")).disk_free is None


def test_flags_are_read() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert read_environment().deterministic
    finally:
        torch.use_deterministic_algorithms(False)


def test_without_torch() -> None:
    code = (
        "import sys\nclass No:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise ModuleNotFoundError(name=name)\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from stayfinite.readers.environment import read_environment\n"
        "found = read_environment(); assert found.torch is None and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_healthy_machine_is_silent() -> None:
    assert codes(HEALTHY) == []
    assert codes(replace(HEALTHY, torch="2.13.0+cpu", build="cpu", devices=[], driver=False)) == []
    assert codes(replace(HEALTHY, torch=None, build="none", devices=[])) == []


@pytest.mark.parametrize(
    ("version", "device", "fires"),
    [
        ("2.5.0+cu124", H100, True),
        ("2.5.1+cu124", H100, False),
        ("2.13.0+cu130", H100, True),
        ("2.13.0+cu130", V100, False),
        ("2.4.1", V100, True),
        ("2.10.0", Device("Apple GPU", "mps"), True),
        ("2.9.0", Device("Apple GPU", "mps"), False),
    ],
)
def test_versions_known_for_nan(version: str, device: Device, fires: bool) -> None:
    found = examine(replace(HEALTHY, torch=version, devices=[device]))
    chosen = [finding for finding in found if finding.code == "ENV001"]
    assert bool(chosen) == fires
    assert all("#" in finding.message for finding in chosen), "each names its source"


def test_the_other_rules() -> None:
    blind = replace(HEALTHY, devices=[])
    assert codes(blind) == ["ENV002"]
    assert codes(replace(blind, variables={"CUDA_VISIBLE_DEVICES": ""})) == []
    assert codes(replace(HEALTHY, torch="2.9.0+cpu", build="cpu", devices=[])) == ["ENV002"]
    assert codes(replace(HEALTHY, devices=[V100])) == ["ENV003"]
    assert codes(replace(HEALTHY, disk_free=GB // 2)) == ["ENV004"]
    assert codes(replace(HEALTHY, memory_free=GB // 4)) == ["ENV004"]
    assert codes(replace(HEALTHY, devices=[replace(H100, free=2 * GB)])) == ["ENV004"]
    assert codes(replace(HEALTHY, deterministic=True)) == ["ENV005"]
    assert codes(replace(HEALTHY, deterministic=True, variables={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})) == []
    assert codes(replace(HEALTHY, devices=[], driver=False, deterministic=True, cudnn_benchmark=True)) == [
        "ENV005"
    ]
