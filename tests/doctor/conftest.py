"""Three real runs, each trained once: a healthy one, one that diverges, one that skips its bad batches."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from doctor.small_project import make_project, train


def _trained(factory: pytest.TempPathFactory, name: str, **settings: str) -> Path:
    folder = make_project(factory.mktemp(name) / "project", **settings)  # type: ignore[arg-type]
    train(folder)
    return folder


@pytest.fixture(scope="session")
def _healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _trained(tmp_path_factory, "healthy")


@pytest.fixture(scope="session")
def _diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _trained(tmp_path_factory, "diverged", lr="5.0")


@pytest.fixture(scope="session")
def _skipping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _trained(tmp_path_factory, "skipping", lr="5.0", skip="true")


@pytest.fixture
def healthy(_healthy: Path, tmp_path: Path) -> Path:
    """A copy with the times of the original, to be changed at will."""
    return Path(shutil.copytree(_healthy, tmp_path / "project"))


@pytest.fixture
def diverged(_diverged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_diverged, tmp_path / "project"))


@pytest.fixture
def skipping(_skipping: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_skipping, tmp_path / "project"))
