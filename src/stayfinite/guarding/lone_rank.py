"""A step of several ranks computed again by one of them, without the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def is_collective(op: str) -> bool:
    """An operation that needs other ranks, by its full name."""
    return op.partition(".")[0] in _COLLECTIVES


class LoneRank(TorchDispatchMode):
    """In a forked child nobody answers: the first operation that needs the others ends what can be computed."""

    def __init__(self, at_the_end: Callable[[], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._at_the_end = at_the_end

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _COLLECTIVES:
            self._at_the_end()
        return func(*args, **(kwargs or {}))


@contextmanager
def own_gradients(models: Iterable[nn.Module], *, in_child: bool = False) -> Iterator[None]:
    """DistributedDataParallel leaves gradients as this rank computed them: a bad one is then the rank's own.

    It does not fetch the buffers of rank 0 either, so that nobody else is needed and none can be waited for in vain.
    Only in a child that nothing comes back from where it notes from pass to pass which parameters were used: what
    it notes now would be taken for part of the next update.
    """
    wrappers = [m for model in models for m in model.modules() if isinstance(m, DistributedDataParallel)]
    if not in_child:
        notes = ("find_unused_parameters", "static_graph")
        wrappers = [w for w in wrappers if not any(getattr(w, note) for note in notes)]
        # Ranks that have joined already answer every pass, and expect all that belongs to it.
        wrappers = [w for w in wrappers if not w._join_config.enable]
    names = ("require_backward_grad_sync", "require_forward_param_sync")
    before = [(wrapper, name, getattr(wrapper, name)) for wrapper in wrappers for name in names]
    for wrapper, name, _ in before:
        setattr(wrapper, name, False)
    try:
        yield
    finally:
        for wrapper, name, value in before:
            setattr(wrapper, name, value)
