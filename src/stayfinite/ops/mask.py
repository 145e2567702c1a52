"""What counts as a mask: booleans, or whole numbers where anything but 0 keeps the position."""

import torch
from torch import Tensor


def keep_mask(mask: Tensor) -> Tensor:
    """``mask`` as booleans, True where the position is kept. Weights are refused: they are not a mask.

    >>> keep_mask(torch.tensor([1, 0, 1]))
    tensor([ True, False,  True])
    """
    if mask.dtype == torch.bool:
        return mask
    if mask.is_floating_point() or mask.is_complex():
        raise TypeError(
            f"a mask must be bool or integer (True keeps), got {mask.dtype}: "
            "pass mask.bool() if it holds only 0 and 1, or mask == 0 if it is additive"
        )
    return mask != 0
