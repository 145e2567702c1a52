"""Which line of the user's code is running: the innermost frame that is neither torch's nor ours."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import cache
from types import FrameType

import torch

import stayfinite
from stayfinite.findings.subjects.run_record import Place

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep  # noqa: PTH100, PTH120
_OURS = os.path.dirname(os.path.abspath(stayfinite.__file__)) + os.sep  # noqa: PTH100, PTH120
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_LIBRARIES = tuple(
    {sysconfig.get_paths()[key] + os.sep for key in ("purelib", "platlib")}
    | {os.sep + "site-packages" + os.sep}
)
_ENGINE = "_engine_run_backward"  # torch.autograd.graph: everything inside of it is the backward pass

# Files of torch that pass a result on to whoever called: modules, functions that can be overridden, distributions.
_HANDS_OUT = tuple(
    _TORCH + name.replace("/", os.sep)
    for name in (
        "nn/modules/",
        "distributions/",
        "overrides.py",
        "nn/functional.py",
        "functional.py",
        "_tensor.py",
        "_jit_internal.py",
    )
)

_OPERATORS = tuple(
    _TORCH + name for name in ("_tensor.py", "overrides.py", "_ops.py", "_compile.py", "_dynamo", "utils")
)

_WATCHING = tuple(_OURS + name + os.sep for name in ("launch", "observers", "watch", "hooks"))

_FETCH = _TORCH + os.path.join("utils", "data", "_utils", "fetch.py")  # noqa: PTH118

USER, LIBRARY, INTERNAL = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Site:
    """A line of code, and the function it is in."""

    file: str
    line: int
    function: str
    position: int = field(default=-1, compare=False)  # of the instruction that runs

    @property
    def source(self) -> str | None:
        return linecache.getline(self.file, self.line).strip() or None


def place_at(site: Site | None) -> Place:
    """The line as findings have it; none where nobody knows."""
    return Place(site.file, site.line) if site is not None else Place()


@cache
def kind_of_file(filename: str) -> int:
    """USER, LIBRARY (site-packages, the standard library) or INTERNAL (torch, stayfinite, generated code)."""
    if filename.startswith(("<frozen", "<string>", "<eval_with_key>", "<torch_package")):
        return INTERNAL
    path = os.path.abspath(filename)  # noqa: PTH100
    if path.startswith((_TORCH, _OURS)):
        return INTERNAL
    if any(part in path for part in _LIBRARIES):
        return LIBRARY
    return LIBRARY if path.startswith(_STDLIB) else USER


def user_frame(skip: int = 1, *, inside_backward: bool = False) -> FrameType | None:
    """The innermost frame of the user's code, or the nearest one of a library, or None.

    inside_backward: look only at what the autograd engine itself called (a custom Function's backward, a
    recomputed checkpoint, a hook), not at the line of loss.backward().
    """
    frame: FrameType | None = sys._getframe(skip)
    library: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        if inside_backward and code.co_name == _ENGINE:
            break
        kind = kind_of_file(code.co_filename)
        if kind == USER:
            return frame
        if kind == LIBRARY and library is None:
            library = frame
        frame = frame.f_back
    return None if inside_backward else library


def user_site(skip: int = 1, *, inside_backward: bool = False) -> Site | None:
    """The line of the user's code that runs now, as `user_frame` finds it."""
    frame = user_frame(skip + 1, inside_backward=inside_backward)
    if frame is None:
        return None
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, frame.f_lasti)


def own_frame(filename: str) -> FrameType | None:
    """The innermost frame that runs this file of ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    return frame


def called_by_user(skip: int = 1) -> bool:
    """Whether what is called now hands its result to the user: called by the user's code, or by a module of his.

    Results inside of torch's own helpers (the norm that clip_grad_norm_ computes) are nobody's results.
    """
    frame: FrameType | None = sys._getframe(skip)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((_OURS, *_HANDS_OUT)):
            return kind_of_file(filename) == USER
        frame = frame.f_back
    return False


def in_fetch() -> bool:
    """Whether a DataLoader reads now what will be a batch: its data set makes one sample after the other."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _FETCH:
        frame = frame.f_back
    return frame is not None


def written_by_user() -> bool:
    """Whether the op that runs now stands in the user's own code, not in a library or in torch's own checks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, *_OPERATORS)):
        frame = frame.f_back
    return frame is not None and kind_of_file(frame.f_code.co_filename) == USER


def is_ours(filename: str) -> bool:
    return filename.startswith(_OURS)


def called_by_us() -> bool:
    """Whether what torch does now was asked for by stayfinite itself (a rollback), through the patches or not."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith((_TORCH, *_WATCHING)) or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_OURS)
