"""torch is loaded when it is needed and not before; where it is missing, the message says what to install."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NO_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def loaded_by(code: str) -> set[str]:
    """The top-level modules a fresh interpreter holds after running the code."""
    result = python(
        f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


def command(*arguments: str) -> str:
    return (
        "from stayfinite.cli import main\n"
        f"try:\n    main({list(arguments)!r}, prog_name='stayfinite')\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import stayfinite; stayfinite.__version__; dir(stayfinite)",
        "from stayfinite import Finding, Incident, Severity",
        command("--help"),
        command("rules"),
        command("rules", "--format", "json"),
        command("explain", "STA003"),
        command("explain", "--help"),
        command("report", "--help"),
        command("live", "--help"),
    ],
    ids=[
        "import",
        "findings",
        "help",
        "rules",
        "rules json",
        "explain",
        "explain help",
        "report help",
        "live help",
    ],
)
def test_torch_is_not_imported(code: str) -> None:
    assert loaded_by(code).isdisjoint({"torch", "numpy"})


def test_the_guard_imports_torch() -> None:
    """The check above can fail: with Guard, torch is there."""
    assert "torch" in loaded_by("from stayfinite import Guard")


def test_a_run_loads_nothing_large_beside_torch() -> None:
    """`stayfinite run` starts as fast as python: sympy alone, which checkpoints of shards load, is half a second."""
    loaded = loaded_by(
        "import sys, stayfinite.launch\n"
        "assert 'sympy' not in sys.modules\n"
        "import torch.distributed.checkpoint"
    )
    assert "sympy" in loaded, "the check can fail"


@pytest.mark.parametrize("name", ["Guard", "StepResult", "Policy", "RunStopped"])
def test_without_torch_the_message_says_what_to_install(name: str) -> None:
    result = python(f"{NO_TORCH}\nfrom stayfinite import {name}")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert f"stayfinite.{name} needs PyTorch" in last
    assert "pip install 'stayfinite[torch]'" in last


@pytest.mark.parametrize("arguments", [("--help",), ("rules",), ("explain", "NUM001")])
def test_without_torch_the_commands_that_need_none_work(arguments: tuple[str, ...]) -> None:
    result = python(NO_TORCH + command(*arguments))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    result = python("import stayfinite; stayfinite.Gaurd")
    assert "module 'stayfinite' has no attribute 'Gaurd'" in result.stderr


def test_every_public_name_is_there() -> None:
    result = python("import stayfinite\nfor name in stayfinite.__all__: getattr(stayfinite, name)")
    assert result.returncode == 0, result.stderr
