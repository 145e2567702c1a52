"""JSON that every parser accepts: NaN and infinities become the strings "nan", "inf", "-inf"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_SPELLED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def number(value: float) -> float | str:
    """A float as JSON can hold it."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def as_float(value: Json) -> float | None:
    """The reverse of `number`; None for anything that is not a number."""
    if isinstance(value, str):
        return _SPELLED.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def jsonable(value: Any) -> Json:
    """A copy of `value` in plain JSON types; unknown objects become their string."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return str(value)


def fields_of(thing: Any) -> dict[str, Json]:
    """The fields of a dataclass, nested ones too, in plain JSON types."""
    return {key: jsonable(value) for key, value in asdict(thing).items()}


def dumps(value: Any, indent: int | None = None) -> str:
    """Valid JSON text for anything `jsonable` takes."""
    plain = jsonable(value)
    text = json.dumps(plain, indent=indent, allow_nan=False, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name with undecodable bytes: lone surrogates, which UTF-8 cannot hold
        return json.dumps(plain, indent=indent, allow_nan=False)
    return text
