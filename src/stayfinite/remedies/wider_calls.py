"""wider_calls: one call on one line is computed in a wider dtype while entered."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code, and the names that its op goes by: conv2d, convolution."""

    file: str
    line: int
    names: tuple[str, ...]


Back = Literal["in range", "always"]
"""When the result is given back in the dtype that it would have had: where that can hold it, or anyway."""


@contextmanager
def wider_calls(place: Place, dtype_name: str, back: Back) -> Iterator[None]:
    """Inputs are widened, the op is computed, and its result narrowed again, so that what follows finds its dtype.

    Under autocast the result stays in float32: what follows is cast by autocast itself. An op that writes into one of
    its inputs writes the narrowed result there.
    """
    import torch
    from torch.overrides import TorchFunctionMode, resolve_name
    from torch.utils._pytree import tree_leaves, tree_map

    wide = getattr(torch, dtype_name)
    here = _UserLine(place, os.path.dirname(torch.__file__) + os.sep)  # noqa: PTH120

    def is_narrower(value: Any) -> bool:
        dtype = value.dtype if isinstance(value, torch.Tensor) else value
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            return False
        return bool(dtype.itemsize < wide.itemsize)

    def widened(value: Any) -> Any:
        if not is_narrower(value):
            return value
        return value.to(wide) if isinstance(value, torch.Tensor) else wide

    def narrowed(value: Any, dtype: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype is not wide:
            return value
        narrow = value.to(dtype)
        if back == "in range" and bool((torch.isfinite(value) & ~torch.isfinite(narrow)).any()):
            return value
        return narrow

    class Wider(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if name.strip("_") not in place.names or not here.runs():
                return func(*args, **kwargs)
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            devices = {leaf.device.type for leaf in given}
            under_autocast = any(torch.is_autocast_enabled(device) for device in devices)
            if not any(map(is_narrower, given)) and not under_autocast:  # which narrows what is wide itself
                return func(*args, **kwargs)
            with torch.autocast(devices.pop(), enabled=False):
                if _writes_into_first(name, resolve_name(func)):
                    fresh, *others = tree_map(widened, args)
                    result = func(fresh.clone(), *others, **tree_map(widened, kwargs))
                    return args[0].copy_(result)
                result = func(*tree_map(widened, args), **tree_map(widened, kwargs))
            if under_autocast and wide is torch.float32:
                return result
            own = torch.float32 if under_autocast else given[0].dtype
            for leaf in given[1:]:
                own = torch.promote_types(own, leaf.dtype)
            return tree_map(lambda value: narrowed(value, own), result)

    with Wider():
        yield


def _writes_into_first(name: str, full: str | None) -> bool:
    """mul_, and the operators += and *=."""
    if name.startswith("__i") and name.endswith("__"):
        return name not in ("__index__", "__int__", "__invert__")
    return name.endswith("_") and not name.endswith("__") and (full or "").startswith("torch.Tensor.")


class _UserLine:
    """Asks whether the innermost line of the user's code that runs now is the one that is meant."""

    def __init__(self, place: Place, torch_folder: str) -> None:
        self._place = place
        paths = sysconfig.get_paths()
        ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120
        self._others = (
            torch_folder,
            ours,
            *(paths[key] + os.sep for key in ("stdlib", "purelib", "platlib")),
        )
        self._file = os.path.realpath(place.file)

    def runs(self) -> bool:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if os.path.realpath(file) == self._file:
                return frame.f_lineno == self._place.line
            if not file.startswith((*self._others, "<")):
                return False
            frame = frame.f_back
        return False
