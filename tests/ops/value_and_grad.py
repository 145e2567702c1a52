"""What the tests of ops share: a value with its gradient, and every number of a 16-bit dtype."""

from collections.abc import Callable

import torch
from torch import Tensor

HALF_AND_SINGLE = [torch.float16, torch.bfloat16, torch.float32]


def value_and_grad(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """function(x) and the gradient of its sum with respect to x."""
    leaf = x.detach().clone().requires_grad_()
    value = function(leaf)
    torch.autograd.backward(value, torch.ones_like(value))
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def every_number(dtype: torch.dtype) -> Tensor:
    """All finite numbers of a 16-bit floating point dtype."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return numbers[numbers.isfinite()]
