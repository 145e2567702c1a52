"""The failing batch as a test that anybody can run: it holds the values, and calls the factory once more."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stayfinite.probe.factory import load
from stayfinite.probe.lab import Lab, said

_LITERAL = 200
"""A tensor with more values than these is written as bytes."""

_HEAD = '''"""A batch on which {name} is not finite: {what}. Run with pytest; it passes once the model is repaired."""

import torch

from stayfinite.probe import failure_on


def test_stays_finite() -> None:
    batch = {batch}
    assert failure_on("{name}", batch) is None
'''
_UNPACK = """

def unpacked(text: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    data = bytearray(zlib.decompress(base64.b85decode(text)))
    return torch.frombuffer(data, dtype=dtype).reshape(shape).clone()
"""


def failure_on(spec: str, batch: Any) -> str | None:
    """What is not finite when the factory's model takes a step on this batch; None where everything is."""
    lab = Lab(load(spec))
    try:
        run = lab.run(batch)
    finally:
        lab.close()
    return said(run.error) if run.error is not None else run.what or None


def write_test(name: str, batch: Any, what: str) -> str:
    """The text of the test."""
    text = _HEAD.format(name=name, what=what.replace('"', "'"), batch=_literal(batch))
    if "unpacked(" in text:
        text = text.replace("import torch\n", "import base64\nimport zlib\n\nimport torch\n", 1) + _UNPACK
    return text


def _literal(value: Any) -> str:
    if isinstance(value, Tensor):
        return _tensor(value.detach().cpu())
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(_literal(item) for item in value) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def _tensor(tensor: Tensor) -> str:
    dtype = str(tensor.dtype)
    if tensor.numel() and bool((tensor == tensor.flatten()[0]).all()) and tensor.numel() > 1:
        return f"torch.full({tuple(tensor.shape)}, {tensor.flatten()[0].item()!r}, dtype={dtype})"
    if tensor.numel() <= _LITERAL:
        return f"torch.tensor({tensor.tolist()!r}, dtype={dtype})".replace("inf", "float('inf')").replace(
            "nan", "float('nan')"
        )
    data = zlib.compress(tensor.contiguous().view(torch.uint8).numpy().tobytes(), 9)
    sizes = "".join(f", {size}" for size in tensor.shape)
    return f'unpacked("{base64.b85encode(data).decode()}", {dtype}{sizes})'
