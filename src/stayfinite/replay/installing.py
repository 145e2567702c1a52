"""Puts torch modes on and takes them off again, also when the script put its own on top in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def push_mode(mode: Any) -> None:
    mode.__enter__()


def pop_mode(mode: Any) -> None:
    """Take one mode off its stack; modes above it (torch.device, the user's own) go back on in their order."""
    functions = isinstance(mode, TorchFunctionMode)
    above: list[Any] = []
    while (top := _top(functions)) is not None:
        top.__exit__(None, None, None)
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        other.__enter__()


def _top(functions: bool) -> Any:
    if functions:
        return torch.overrides._get_current_function_mode()  # type: ignore[no-untyped-call]
    return torch.utils._python_dispatch._get_current_dispatch_mode()


def compiled_code_runs_eagerly() -> Callable[[], object]:
    """torch.compile'd code would hide its ops; run it eagerly until the returned function is called."""
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None:
        return lambda: None
    context = stance("force_eager")
    context.__enter__()
    return lambda: context.__exit__(None, None, None)
