"""A model with a `parameters()` of its own, which gives a list or wants arguments, runs under the tracer as without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stayfinite import Guard
from stayfinite.replay import Tracer


class _GivesAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vars = nn.ParameterList([nn.Parameter(torch.ones(2, 4))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.vars[0])

    def parameters(self, recurse: bool = True) -> Any:
        return self.vars


class _WantsAnArgument(_GivesAList):
    def parameters(self, rate: float) -> Any:  # type: ignore[override]
        return [{"params": self.vars, "lr": rate}]


@pytest.mark.parametrize("kind", [_GivesAList, _WantsAnArgument])
def test_it_runs_as_without(kind: type[_GivesAList]) -> None:
    model, x = kind(), torch.ones(3, 4)
    with Tracer() as trace:
        model(x)
        model(x).sum().backward()
    assert trace.failure() is None and trace.follower.modules.batch_size == 3
    guard = Guard(model, torch.optim.SGD(model.vars, 0.1), quiet=True)
    assert guard.step(lambda: model(x).square().mean()).applied
    guard.close()
