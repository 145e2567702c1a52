"""The smallest number that is safe to divide by in a dtype: the floor that the other ops use."""

import torch
from torch import Tensor

# 257 * 2**-24. Half subnormals are never flushed to zero, so the floor is set by the reciprocal alone:
# 1 / (256 * 2**-24) is 65536 and already overflows, the next number up gives 65280.
_TINY_FLOAT16 = 257 * 2.0**-24


def tiny(of: torch.dtype | Tensor) -> float:
    """The smallest positive number that neither vanishes in the dtype nor has an infinite reciprocal.

    An eps of 1e-8 is 0 in float16; this one always exists. It is the smallest normal number (subnormals may
    be flushed to zero by the hardware), except in float16, where subnormals are safe.

    >>> tiny(torch.float32) == 2.0**-126
    True
    >>> float(torch.tensor(tiny(torch.float16), dtype=torch.float16).reciprocal())
    65280.0
    """
    dtype = of.dtype if isinstance(of, Tensor) else of
    if not dtype.is_floating_point:
        raise TypeError(
            f"{dtype} has no eps: pass a real floating point dtype or tensor, such as torch.float32"
        )
    if dtype == torch.float16:
        return _TINY_FLOAT16
    return float(torch.finfo(dtype).tiny)
