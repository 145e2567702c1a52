"""`[tool.stayfinite]` of the nearest pyproject.toml: select, ignore, exclude, thresholds, and the factory to probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

THRESHOLDS: dict[str, float] = {
    "eps-floor": 1e-15,
    "student-temperature-floor": 0.05,
    "teacher-temperature-floor": 0.04,
    "temperature-floor": 0.01,
    "clip-ceiling": 100.0,
    "adam-rate-ceiling": 1e-2,
    "sgd-rate-ceiling": 1.0,
    "finetune-rate-ceiling": 1e-3,
    "min-loss-scale": 1.0,
}


class WrongSettings(Exception):
    """`[tool.stayfinite]` cannot be understood; the message says what and where."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the project asks for; the command line comes on top."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=lambda: dict(THRESHOLDS))
    probe: str | None = None
    """module:factory, which `stayfinite doctor` has probed."""
    file: Path | None = None


def find_settings(start: Path) -> Settings:
    """From the first pyproject.toml at or above a path that has a `[tool.stayfinite]` table."""
    folder = start if start.is_dir() else start.parent
    try:
        places = [folder.resolve(), *folder.resolve().parents]
    except (OSError, RuntimeError):
        return Settings()
    for place in places:
        candidate = place / "pyproject.toml"
        if candidate.is_file():
            table = _table(candidate)
            if table is not None:
                return _settings(table, candidate)
    return Settings()


def _table(path: Path) -> dict[str, Any] | None:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        return None
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    except tomllib.TOMLDecodeError as trouble:
        raise WrongSettings(f"{path}: not valid TOML ({trouble})") from trouble
    tool = data.get("tool")
    table = tool.get("stayfinite") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def _settings(table: dict[str, Any], path: Path) -> Settings:
    thresholds = dict(THRESHOLDS)
    given = table.get("thresholds", {})
    if not isinstance(given, dict):
        raise WrongSettings(f"{path}: [tool.stayfinite] thresholds must be a table of numbers")
    for name, value in {**given, **{k: v for k, v in table.items() if k in THRESHOLDS}}.items():
        if name not in THRESHOLDS:
            known = ", ".join(THRESHOLDS)
            raise WrongSettings(f"{path}: there is no threshold {name!r}; there are {known}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise WrongSettings(f"{path}: the threshold {name} must be a number, it is {value!r}")
        thresholds[name] = float(value)
    unknown = set(table) - {"select", "ignore", "exclude", "thresholds", "probe", *THRESHOLDS}
    if unknown:
        raise WrongSettings(f"{path}: [tool.stayfinite] has no setting {sorted(unknown)[0]!r}")
    return Settings(
        _strings(table, "select", path),
        _strings(table, "ignore", path),
        _strings(table, "exclude", path),
        thresholds,
        _text(table, "probe", path),
        path,
    )


def _strings(table: dict[str, Any], name: str, path: Path) -> tuple[str, ...]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise WrongSettings(f"{path}: [tool.stayfinite] {name} must be a list of texts")
    return tuple(value)


def _text(table: dict[str, Any], name: str, path: Path) -> str | None:
    value = table.get(name)
    if value is not None and not isinstance(value, str):
        raise WrongSettings(f"{path}: [tool.stayfinite] {name} must be a text, such as module:factory")
    return value
