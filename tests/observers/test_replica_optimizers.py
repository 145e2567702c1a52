"""ReplicaOptimizers: replicas are told from copies that learn for themselves, without a trace."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from stayfinite.findings.subjects.run_record import Place, ReplicaFacts
from stayfinite.observers.replica_optimizers import ReplicaOptimizers

HERE = Place("train.py", 7)


def trained(
    steps: Callable[[int, int], bool], *, shared: bool = True, rates: tuple[float, float] = (0.1, 0.1)
) -> tuple[ReplicaFacts, ...]:
    """Two copies for 20 rounds; steps(rank, round) says who takes the update."""
    torch.manual_seed(0)
    first = torch.nn.Linear(3, 1)
    nets = [first, copy.deepcopy(first)]
    opts = [torch.optim.SGD(net.parameters(), rate) for net, rate in zip(nets, rates, strict=True)]
    replicas = ReplicaOptimizers()
    for opt, rate in zip(opts, rates, strict=True):
        replicas.created(opt, rate)
    for number in range(20):
        for net, opt in zip(nets, opts, strict=True):
            x = torch.randn(4, 3)
            opt.zero_grad()
            (net(x) - x[:, :1]).pow(2).mean().backward()
        if shared:
            for one, two in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
                assert one.grad is not None
                two.grad = one.grad.clone()
        for rank, opt in enumerate(opts):
            if steps(rank, number):
                replicas.stepping(opt, HERE)
                opt.step()
    return replicas.facts()


def test_a_replica_that_misses_updates() -> None:
    for missed in (0, 4, 17):
        found = trained(lambda rank, number, missed=missed: rank == 0 or number != missed)
        assert [replica.skipped for replica in found] == [0, 1]
        assert found[1].drift
        assert not found[1].equal
        assert found[1].place == HERE


def test_what_is_not_a_drift() -> None:
    assert trained(lambda rank, number: True) == ()
    assert trained(lambda rank, number: rank == 0 or number != 4, shared=False) == ()
    assert trained(lambda rank, number: rank == 0 or number < 10) == ()  # the same run, shorter
    assert trained(lambda rank, number: True, rates=(0.1, 0.2)) == ()  # two rates on purpose
