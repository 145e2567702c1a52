"""Names of parameters: found by the tensor or by its memory, never inherited by a later tensor."""

from __future__ import annotations

import gc

import torch
from torch import nn

from stayfinite.replay.modules import Names


def test_a_parameter_is_found_through_its_data_too() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    names = Names([net])
    assert names.find(net[0].weight) == ("parameter", "0.weight")
    assert names.find(net[0].weight.data) == ("parameter", "0.weight")
    assert names.find(net[1].running_var) == ("buffer", "1.running_var")
    assert names.find(torch.zeros(2, 3)) is None


def test_a_name_is_not_inherited_with_the_address() -> None:
    memory = torch.zeros(6)
    net = nn.Linear(3, 2, bias=False)
    net.weight = nn.Parameter(memory.view(2, 3))
    names = Names([net])
    later = memory.view(3, 2)
    assert names.find(later) == ("parameter", "weight")
    del net
    gc.collect()
    assert names.find(later) is None
