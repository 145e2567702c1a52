"""A fingerprint of everything a script trains, to tell whether a step was undone bit for bit."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.launch.training_parts import training_parts

Digest = dict[str, str]
"""By tensor name, with its kind in front: "parameter Net.0.weight"."""

KINDS = ("parameters", "buffers", "optimizer state", "averages")


def digest(optimizers: Sequence[Optimizer], kinds: Sequence[str] = KINDS) -> Digest:
    """The hashes of the tensors of these kinds."""
    with torch.no_grad():
        return {name: _hash(tensor) for name, tensor in _tensors(optimizers) if name.split(": ")[0] in kinds}


def differences(before: Digest, after: Digest, kind: str) -> list[str] | None:
    """The names that are not what they were; None where there is nothing of this kind."""
    names = [name for name in {**before, **after} if name.startswith(f"{kind}: ")]
    if not names:
        return None
    return [name.partition(": ")[2] for name in names if before.get(name) != after.get(name)]


def not_finite(optimizers: Sequence[Optimizer]) -> list[str]:
    """Parameters and moments that hold a NaN or an Inf."""
    return [
        name.partition(": ")[2]
        for name, tensor in _tensors(optimizers)
        if name.startswith(("parameters", "optimizer state"))
        and tensor.is_floating_point()
        and not bool(torch.isfinite(tensor).all())
    ]


def _tensors(optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, Tensor]]:
    models, averages = training_parts(optimizers)
    for name, model in models.items():
        yield from ((f"parameters: {name}.{n}", p.detach()) for n, p in model.named_parameters())
        yield from ((f"buffers: {name}.{n}", b.detach()) for n, b in model.named_buffers())
    for number, average in enumerate(averages):
        for name, tensor in (*average.named_parameters(), *average.named_buffers()):
            yield f"averages: {number}.{name}", tensor.detach()
    for number, optimizer in enumerate(optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for position, parameter in enumerate(parameters):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"optimizer state: {number}.{position}.{key}", value.detach()


def _hash(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    values = tensor.cpu().contiguous()
    content = ctypes.string_at(values.data_ptr(), values.nbytes) if values.numel() else b""
    return hashlib.blake2b(content, digest_size=16).hexdigest() + f" {tensor.dtype} {tuple(tensor.shape)}"
