"""How large the outputs of equal blocks are, from the first to the last: at the start, and after some steps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from stayfinite.findings.subjects.probed_model import BlockGrowth

_BLOCKS = 4
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


def block_growths(model: nn.Module, forward: Callable[[], object]) -> list[BlockGrowth]:
    """The root mean square of what each block of a list puts out in one pass; lists of four or more of one class."""
    seen: list[tuple[str, str, float]] = []
    hooks = [
        module.register_forward_hook(_measuring(seen, name, type(module).__name__))
        for name, module in model.named_modules()
        if _NUMBER.search(name.rpartition(".")[2])  # the block itself, not a layer inside of it
    ]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    groups: dict[tuple[str, str], list[float]] = {}
    for name, kind, rms in seen:
        groups.setdefault((_NUMBER.sub("*", name), kind), []).append(rms)
    return [
        BlockGrowth(blocks, kind, tuple(sizes))
        for (blocks, kind), sizes in groups.items()
        if len(sizes) >= _BLOCKS and all(math.isfinite(size) for size in sizes)
    ]


def _measuring(seen: list[tuple[str, str, float]], name: str, kind: str) -> Any:
    def measure(_module: nn.Module, _args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(first, Tensor) and first.is_floating_point() and first.numel():
            seen.append((name, kind, float(first.detach().double().square().mean().sqrt())))

    return measure
