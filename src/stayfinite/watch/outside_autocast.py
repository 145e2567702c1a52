"""Measuring outside of autocast: scripts hold a whole step inside of it, and some dtypes it refuses to add up."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Made = TypeVar("Made")


def outside_autocast(measure: Callable[Given, Made]) -> Callable[Given, Made]:
    """The same function; what it computes keeps the dtypes it is given."""

    @functools.wraps(measure)
    def measured(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        if not torch._C._is_any_autocast_enabled():
            return measure(*args, **kwargs)
        with ExitStack() as stack:
            for device in ("cpu", "cuda", "xpu", "mps"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            return measure(*args, **kwargs)

    return measured


def is_refused_by_autocast(dtype: torch.dtype, device: torch.device) -> bool:
    """torch's own gradient norm raises under autocast for these; for all others it is what torch makes it."""
    return dtype is torch.float64 or (dtype is torch.float16 and device.type == "cpu")
