"""Reads JSON that may hold anything: every access gives the wanted type or a plain substitute, never an error."""

from __future__ import annotations

from typing import Any

from stayfinite.findings import as_float

_LONGEST_TEXT = 20_000


def text(data: Any, key: str, default: str = "") -> str:
    """A string (or number, as text) under `key`."""
    value = data.get(key) if isinstance(data, dict) else None
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT] + " ..."
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def number(data: Any, key: str) -> float | None:
    """A number, "nan" and "inf" among them."""
    return to_number(data.get(key)) if isinstance(data, dict) else None


def to_number(value: Any) -> float | None:
    try:
        return as_float(value)
    except OverflowError:  # an integer that no float can hold
        return float("inf") if value > 0 else float("-inf")


def whole(data: Any, key: str) -> int | None:
    """An integer."""
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def items(data: Any, key: str) -> list[Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, list) else []


def objects(data: Any, key: str) -> list[dict[str, Any]]:
    """The JSON objects of a list."""
    return [item for item in items(data, key) if isinstance(item, dict)]


def mapping(data: Any, key: str) -> dict[str, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}
