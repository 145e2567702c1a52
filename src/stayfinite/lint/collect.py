"""Which files there are to lint: what was named, and what lies in the folders that were named."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE_ENDINGS = (".py",)
CONFIG_ENDINGS = (".yaml", ".yml", ".json", ".toml")
PASSED_BY = frozenset(
    [
        "__pycache__", "node_modules", ".git", ".github", ".circleci", ".hg", ".venv", "venv", ".tox",
        ".mypy_cache", ".ruff_cache", ".pytest_cache", "wandb", "mlruns", "build", "dist", "site-packages",
        ".ipynb_checkpoints",
    ]
)  # fmt: skip
_NO_CONFIGS = frozenset(
    [
        ".gitlab-ci.yml", ".travis.yml", "docker-compose.yml", "docker-compose.yaml", "package.json",
        "package-lock.json", "pyproject.toml", "poetry.lock", "tsconfig.json", "mkdocs.yml",
        ".pre-commit-config.yaml", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "vocab.json", "added_tokens.json", "uv.toml", "ruff.toml", "model.safetensors.index.json",
        "pytorch_model.bin.index.json", "trainer_state.json", "generation_config.json",
        "incident.json", "capsule.json",  # ours
    ]
)  # fmt: skip
_LARGEST_IN_FOLDER = 1 << 20  # a configuration found in a folder; a larger file is data


@dataclass(frozen=True, slots=True)
class Found:
    """One file, and whether the user named it."""

    path: Path
    named: bool

    @property
    def source(self) -> bool:
        return self.path.suffix in SOURCE_ENDINGS


def collect(
    paths: Sequence[str], exclude: Sequence[str] = (), refused: list[str] | None = None
) -> list[Found]:
    """The files in order, each once; what does not exist is added to `refused`."""
    found: dict[str, Found] = {}
    for given in paths:
        path = Path(given)
        try:
            folder, exists = path.is_dir(), path.exists()
        except OSError as trouble:
            _refuse(refused, f"{given}: cannot be opened ({trouble.strerror or trouble})")
            continue
        if folder:
            for inner in _walk(path, refused):
                if not _excluded(inner, exclude):
                    found.setdefault(_identity(inner), Found(inner, False))
        elif exists or path.is_symlink():
            if path.suffix not in SOURCE_ENDINGS + CONFIG_ENDINGS:
                _refuse(refused, f"{given}: neither Python nor a configuration (.py, .yaml, .json, .toml)")
            elif not _excluded(path, exclude):
                found.setdefault(_identity(path), Found(path, True))
        else:
            _refuse(refused, f"{given}: no such file or folder")
    return list(found.values())


def _refuse(refused: list[str] | None, sentence: str) -> None:
    if refused is not None:
        refused.append(sentence)


def _identity(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except OSError:
        return str(path)


def _walk(folder: Path, refused: list[str] | None) -> Iterator[Path]:
    """Links to folders are not followed, so that a cycle ends."""

    def unreadable(trouble: OSError) -> None:
        _refuse(refused, f"{trouble.filename}: cannot be opened ({trouble.strerror})")

    for place, folders, files in os.walk(folder, onerror=unreadable, followlinks=False):
        folders[:] = sorted(
            name for name in folders if name not in PASSED_BY and not name.endswith(".egg-info")
        )
        for name in sorted(files):
            path = Path(place, name)
            if path.suffix in SOURCE_ENDINGS:
                yield path
            elif path.suffix in CONFIG_ENDINGS and name not in _NO_CONFIGS:
                size = _size(path)
                if size <= _LARGEST_IN_FOLDER:
                    yield path
                else:
                    _refuse(refused, f"{path}: {size / 1e6:.0f} MB is data, not a configuration")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it says why not


def _excluded(path: Path, patterns: Sequence[str]) -> bool:
    text = path.as_posix()
    return any(
        fnmatch.fnmatch(text, pattern)
        or fnmatch.fnmatch(text, f"*/{pattern.rstrip('/')}/*")
        or fnmatch.fnmatch(text, f"*/{pattern}")
        or text.startswith(pattern.rstrip("/") + "/")
        for pattern in patterns
    )
