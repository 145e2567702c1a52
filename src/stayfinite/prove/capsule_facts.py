"""What the facts of a capsule must look like: each that a replay reads, with its type. Whatever else is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

_TEXT: Final = 4096  # characters of a path


def complaint(facts: Any) -> str | None:
    """What is wrong with them, in a few words; None if nothing is."""
    if not isinstance(facts, dict):
        return "its facts are no table"
    kind = str(facts.get("kind"))
    if kind not in _OF_KIND:
        return f"it is of no known kind ({kind[:40]!r})"
    for name, is_right in {**_COMMON, **_OF_KIND[kind]}.items():
        if name in facts and not is_right(facts[name]):
            return f"{name!r} is not what a capsule has there"
    return None


def missing(facts: Mapping[str, Any]) -> str | None:
    """The first fact that a replay cannot do without and that is not there."""
    return next((name for name in _NEEDED[facts["kind"]] if name not in facts), None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _TEXT and "\0" not in value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _list_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _table_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict) and all(map(_is_text, value)) and all(map(is_right, value.values()))
    )


def _is_python_random(value: Any) -> bool:
    """What random.getstate gives: a version, 625 numbers, and perhaps a number that is left over."""
    if not isinstance(value, list) or len(value) != 3 or value[0] != 3 or not isinstance(value[1], list):
        return False
    words = all(isinstance(one, int) and 0 <= one < 2**32 for one in value[1])
    return len(value[1]) == 625 and words and (value[2] is None or _is_number(value[2]))


def _is_autocast(value: Any) -> bool:
    if isinstance(value, bool):  # a capsule of an earlier version
        return True
    known = ("float16", "bfloat16", "float32", "float64")
    return (
        isinstance(value, dict)
        and isinstance(value.get("enabled"), bool)
        and value.get("dtype") in known
        and value.get("device") in ("cpu", "cuda", "mps", "xpu")
    )


def _is_script(value: Any) -> bool:
    """How a script was started, inside of another capsule: all of it, or nothing."""
    return (
        isinstance(value, dict)
        and value.get("kind") == "script"
        and complaint(value) is None
        and not missing(value)
    )


_COMMON: Final[Mapping[str, Callable[[Any], bool]]] = {
    "sources": _table_of(_is_text),
    "versions": _table_of(_is_text),
    "left_out": _list_of(lambda value: isinstance(value, str)),
    "groups": _list_of(_is_text),
    "python_random": _is_python_random,
}
_OF_KIND: Final[Mapping[str, Mapping[str, Callable[[Any], bool]]]] = {
    "script": {
        "target": _is_text,
        "arguments": _list_of(_is_text),
        "module": lambda value: isinstance(value, bool),
        "folder": _is_text,
        "threads": lambda value: isinstance(value, int) and 0 < value <= 4096,
        "hash_seed": lambda value: value is None or isinstance(value, str),
        "numpy_random": lambda value: value is None or isinstance(value, list),
    },
    "step": {
        "step": lambda value: isinstance(value, int),
        "calls": _list_of(lambda value: isinstance(value, list)),
        "function": _is_text,
        "autocast": _is_autocast,
        "scale": lambda value: value is None or _is_number(value),
        "clip": lambda value: value is None or _is_number(value),
        "training": _table_of(lambda value: isinstance(value, bool)),
        "optimizers": _list_of(lambda value: isinstance(value, dict)),
        "script": _is_script,
    },
}
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "script": ("target", "arguments", "module", "folder", "threads", "hash_seed", "python_random"),
    "step": ("calls", "python_random"),
}
