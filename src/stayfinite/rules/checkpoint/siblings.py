"""Tensors that play the same part in different layers, found by their names."""

from __future__ import annotations

import re

from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind, Tensor

_NUMBER = re.compile(r"\d+")


def siblings(checkpoint: Checkpoint, *kinds: Kind) -> dict[tuple[str, str, int], list[Tensor]]:
    """`layers.3.attn.weight` and `layers.7.attn.weight` belong together: same name but for numbers, same rank."""
    families: dict[tuple[str, str, int], list[Tensor]] = {}
    for tensor in checkpoint.of_kind(*kinds):
        if tensor.floating and tensor.statistics is not None and tensor.numel:
            family = (tensor.kind.value, _NUMBER.sub("#", tensor.name), len(tensor.shape))
            families.setdefault(family, []).append(tensor)
    return families
