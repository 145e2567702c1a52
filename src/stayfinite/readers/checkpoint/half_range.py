"""Minimum and maximum of 16-bit floats from their bits: integers are compared several times faster.

Sign and magnitude: among positive values the bits order as signed integers do, among negative ones the
largest unsigned integer is the lowest value. NaN has larger bits than Inf, so it cannot hide.
"""

from __future__ import annotations

import importlib.util
import math
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SIGN = 0x8000


@cache
def available() -> bool:
    """numpy, whose integer reductions use the processor's vector instructions, is there."""
    return importlib.util.find_spec("numpy") is not None


def half_range(values: torch.Tensor) -> tuple[float, float]:
    """The lowest and highest value of a contiguous float16 or bfloat16 tensor; NaN twice if it holds one."""
    import torch

    bits: Any = values.view(torch.int16).numpy()
    highest, top = int(bits.max()), int(bits.view("uint16").max())
    if highest >= 0 and top >= _SIGN:
        low, high = top, highest
    else:  # one sign only
        smallest = int(bits.min()) & 0xFFFF
        low, high = (top, smallest) if top >= _SIGN else (smallest, highest)
    brain = values.dtype == torch.bfloat16
    lowest, greatest = _value(low, brain), _value(high, brain)
    return (math.nan, math.nan) if math.isnan(lowest) or math.isnan(greatest) else (lowest, greatest)


def _value(bits: int, brain: bool) -> float:
    """A bit pattern as a number; zero without a sign."""
    packed = struct.pack("<I", bits << 16) if brain else struct.pack("<H", bits)
    (value,) = struct.unpack("<f" if brain else "<e", packed)
    return float(value) + 0.0
