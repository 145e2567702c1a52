"""The facts of an optimizer: from its groups, from its state once it has one, and as somebody counted."""

from __future__ import annotations

import torch
from torch import nn

from stayfinite.findings.subjects.run_record import Place
from stayfinite.watch.optimizer_facts import optimizer_facts, rate_of


def trained(dtype: torch.dtype, **settings: float) -> torch.optim.Optimizer:
    model = nn.Linear(3, 1).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), **settings)  # type: ignore[arg-type]
    for _ in range(2):
        model(torch.ones(1, 3, dtype=dtype)).sum().backward()
        optimizer.step()
    return optimizer


def test_a_half_state_shows_that_eps_is_zero_in_it() -> None:
    facts = optimizer_facts(trained(torch.float16, lr=0.0, weight_decay=0.5))
    assert (facts.kind, facts.lr, facts.eps, facts.eps_in_dtype) == ("AdamW", 0.0, 1e-8, 0.0)
    assert (facts.param_dtypes, facts.state_dtypes) == (("float16",), ("float16",))
    assert facts.steps == 2


def test_what_somebody_counted_comes_before_what_the_state_says() -> None:
    place = Place("train.py", 7)
    facts = optimizer_facts(trained(torch.float32), 5, place, place)
    assert (facts.steps, facts.created, facts.stepped) == (5, place, place)


def test_an_optimizer_without_eps_betas_and_state() -> None:
    facts = optimizer_facts(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.25))
    assert (facts.lr, facts.eps, facts.eps_in_dtype) == (0.25, None, None)
    assert (facts.state_dtypes, facts.steps) == ((), 0)


def test_a_rate_may_be_a_tensor() -> None:
    rate = torch.tensor(0.5)
    assert rate_of(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=rate)) == 0.5
