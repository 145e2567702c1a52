"""ClearedGradients: between a refused update and the next backward pass a script still finds a gradient to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer


class ClearedGradients:
    """A refused update leaves no gradients. Scripts that read `p.grad` after their step (norms, histograms) find zeros
    in place of the None that plain python would never have shown them; they go before anything is added to them."""

    def __init__(self) -> None:
        self._shown: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def shown(self, optimizers: Sequence[Optimizer]) -> Iterator[None]:
        """What is cleared inside is zero afterwards."""
        had = [
            parameter
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        yield
        with torch.no_grad():
            for parameter in had:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                    self._shown.append((parameter, parameter.grad))

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """For an optimizer's step: it finds no gradients, and the script after it what it found before."""
        shown = self._shown
        self.drop()
        try:
            yield
        finally:
            for parameter, zeros in shown:
                if parameter.grad is None:
                    parameter.grad = zeros
                    self._shown.append((parameter, zeros))

    def drop(self) -> None:
        """The script has had its look: a parameter without a gradient is one that the next update leaves alone."""
        shown, self._shown = self._shown, []
        for parameter, zeros in shown:
            if parameter.grad is zeros:
                parameter.grad = None
