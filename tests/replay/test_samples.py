"""Rows are samples only where the first dimension is the batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stayfinite.replay import Tracer

GIVEN = {
    "samples first": ((8, 5, 4), (3, 0, 0), (3,)),
    "steps first": ((16, 8, 4), (3, 0, 0), ()),
    "steps first, no multiple": ((5, 8, 4), (3, 0, 0), ()),
    "two views of the batch": ((16, 4), (11, 0), ()),
    "parts of the batch": ((4, 4), (3, 0), (3,)),
}


@pytest.mark.parametrize("name", GIVEN)
def test_which_samples(name: str) -> None:
    shape, where, samples = GIVEN[name]
    net = nn.Linear(4, 4)
    x = torch.ones(shape)
    x[where] = 0
    with Tracer() as trace:
        trace.note_batch([torch.ones(8, 4)])
        net(x)
        loss = (x / x).sum()
        step = trace.failure(loss)
    assert step is not None and step.birth is not None and step.birth.birth.samples == samples
