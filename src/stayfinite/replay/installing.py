"""Puts torch modes on and takes them off again, also when the script put its own on top in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stayfinite.hooks import listen
from stayfinite.replay.measure import PLAIN_TENSORS


def push_mode(mode: Any) -> None:
    mode.__enter__()


def pop_mode(mode: Any) -> None:
    """Take one mode off its stack; modes above it (torch.device, the user's own) stay on, in their order."""
    functions = isinstance(mode, TorchFunctionMode)
    stack: Any = torch.overrides if functions else torch.utils._python_dispatch
    top = stack._get_current_function_mode if functions else stack._get_current_dispatch_mode
    above: list[Any] = []
    while top() is not None and top() is not mode:
        above.append(stack._pop_mode())
    if top() is mode:
        mode.__exit__(None, None, None)
    for other in reversed(above):
        stack._push_mode(other)


def fast_paths_stay() -> Callable[[], object]:
    """nn.Transformer and nn.MultiheadAttention leave their fast path while a function mode is on.

    The other path rounds differently, so a traced evaluation would not give the numbers of a plain one. Until
    the returned function is called, they are told only of tensors and modes that are not the tracer's.
    """

    def asked(asks: Callable[[Iterable[Any]], bool], args: Iterable[Any]) -> bool:
        others = torch._C._len_torch_function_stack() > 1
        return (others or any(type(a) not in PLAIN_TENSORS for a in args)) and asks(args)

    return listen("fast_path", asked).stop


def compiled_code_runs_eagerly() -> Callable[[], object]:
    """torch.compile'd code would hide its ops; run it eagerly until the returned function is called."""
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None:
        return lambda: None
    context = stance("force_eager")
    context.__enter__()
    return lambda: context.__exit__(None, None, None)
