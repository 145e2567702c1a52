"""The frameworks themselves, real trainings, in an environment of their own: make test-frameworks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_configure(config: pytest.Config) -> None:
    """Lightning is older than this torch."""
    config.addinivalue_line(
        "filterwarnings", "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
    )
    config.addinivalue_line(
        "filterwarnings", "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"
    )


@pytest.fixture(autouse=True)
def _one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
