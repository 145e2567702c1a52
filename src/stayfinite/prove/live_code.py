"""swapped: functions that are in memory run as an edited source has them, while entered."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType


class NotInMemory(Exception):
    """The edited lines are in no function that is in memory: code of a module runs only once."""


@contextmanager
def swapped(texts: Mapping[str, str], *, required: bool = True) -> Iterator[None]:
    """Give every function of these files its edited code; as before afterwards.

    `required`: each of the files must have such a function; else what was edited is run by somebody else.
    """
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for file, text in texts.items():
            found = _edited_functions(file, text)
            if not found and required:
                raise NotInMemory(f"no function of {file} that is in memory has the edited line")
            for function, code in found:
                before.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _edited_functions(file: str, text: str) -> list[tuple[FunctionType, CodeType]]:
    new: dict[tuple[str, int], CodeType] = {}
    gc.unfreeze()  # frozen objects are in no list; this is a child, whose memory is its own
    functions = [one for one in gc.get_objects() if type(one) is FunctionType]
    names = {one.__code__.co_filename for one in functions}
    last = Path(file).name
    names = {name for name in names if name.endswith(last) and os.path.realpath(name) == file}
    live = [one for one in functions if one.__code__.co_filename in names]
    for name in names:
        for code in _codes(compile(text, name, "exec", dont_inherit=True)):
            new[(_name(code), code.co_firstlineno)] = code
    found = []
    for function in live:
        old = function.__code__
        edited = new.get((_name(old), old.co_firstlineno))
        if edited is not None and edited.co_freevars == old.co_freevars and not _same(edited, old):
            found.append((function, edited))
    return found


def _same(one: CodeType, other: CodeType) -> bool:
    return (
        one.co_code == other.co_code and one.co_consts == other.co_consts and one.co_names == other.co_names
    )


def _name(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
