"""The float32 verdict: the same op on the same inputs, once more in float32."""

from __future__ import annotations

import math
from typing import Any

import torch

from stayfinite.findings.subjects.traced_birth import Float32Verdict
from stayfinite.replay.measure import account, measurable
from stayfinite.replay.running import Running

HALF = (torch.float16, torch.bfloat16)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALF else value.clone()
    if isinstance(value, torch.dtype):
        return torch.float32 if value in HALF else value
    if isinstance(value, (list, tuple)):
        return type(value)(_wide(item) for item in value)
    return value


def in_float32(running: Running) -> Float32Verdict | None:
    """Run the op again in float32; None when it cannot be (random, or the op refuses)."""
    op, args, kwargs = running.op, running.args, running.kwargs
    if op.random or op.uninitialised or "out" in kwargs:
        return None
    wide_args = [_wide(value) for value in args]
    try:
        result = running.func(*wide_args, **{name: _wide(value) for name, value in kwargs.items()})
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None
    written = [a for name, a in zip(op.arguments, wide_args, strict=False) if name in op.writes]
    tensors = [t for t in _flat([result, written]) if measurable(t)]
    if not tensors:
        return None
    accounts = [account(t) for t in tensors]
    largest = [a.absmax for a in accounts if a.absmax is not None and math.isfinite(a.absmax)]
    finite = not any(a.nan or a.posinf or a.neginf for a in accounts)
    return Float32Verdict(finite, max(largest) if largest else None)


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _flat(item)]
    return []
