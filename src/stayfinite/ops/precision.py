"""In which precision an op computes: half dtypes are widened to float32, everything else stays as it is."""

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for anything narrower, otherwise the dtype itself.

    >>> wide_dtype(torch.float16), wide_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    if not dtype.is_floating_point:
        raise TypeError(
            f"a real floating point tensor is needed, got {dtype}: convert it with .float() first"
        )
    return torch.float32 if torch.finfo(dtype).bits < 32 else dtype


def widen(x: Tensor) -> Tensor:
    """``x`` in at least float32; the gradient comes back in the dtype of ``x``."""
    return x.to(wide_dtype(x.dtype))
