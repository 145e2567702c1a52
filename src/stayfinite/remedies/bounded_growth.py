"""Bounded growth: what a module gives to the next may not be larger than a bound, so that blocks cannot compound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.update_size import largest_update
from stayfinite.remedies.remedy import Case, Remedy

LARGEST: Final = 256.0
_LEAST_BLOCKS: Final = 3
_LEAST_GAIN: Final = 1.2


class BoundedGrowth(Remedy):
    """A sample whose largest value passes the bound is scaled down to it as a whole; its gradient with it."""

    name = "bounded-growth"
    sentence = (
        f"bound what each block gives to the next (here: a sample is scaled down to a largest value of {LARGEST:.0f}; "
        "a norm behind each block, or mixing weights that sum to 1, does the same)"
    )
    kinds = frozenset({Kind.GROWN, Kind.POWER_OVERFLOW, Kind.HALF_OVERFLOW, Kind.ABSURD_PARAMETER})
    rank = 4
    over_steps = True
    universal = True  # where values are too large anywhere, it helps

    def fits(self, case: Case) -> bool:
        """The largest values came through repeated blocks, each of which enlarged them: by themselves, not because one
        update has made all weights absurd."""
        growth = case.step.growth
        repeated = growth.repeated(_LEAST_BLOCKS) if growth is not None else None
        if largest_update(case.step) is not None:
            return False
        return case.kind in self.kinds and repeated is not None and repeated[2] >= _LEAST_GAIN

    def applied(self) -> AbstractContextManager[None]:
        return _bounded()


@contextmanager
def _bounded() -> Iterator[None]:
    from torch.nn.modules.module import register_module_forward_hook

    handle = register_module_forward_hook(lambda module, given, output: _within(output))
    try:
        yield
    finally:
        handle.remove()


def _within(output: Any) -> Any:
    import torch

    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        return tuple(_within(one) for one in output)
    if not isinstance(output, torch.Tensor) or not output.is_floating_point() or output.dim() < 2:
        return output
    with torch.no_grad():
        largest = output.detach().float().abs().flatten(1).amax(1)
        if not bool((largest > LARGEST).any()):
            return output  # the very tensor: nothing healthy is touched
        scale = torch.where(largest > LARGEST, LARGEST / largest, 1.0)
        scale = scale.to(output.dtype).view(-1, *[1] * (output.dim() - 1))
    return output * scale
