"""An update that waits for a second optimizer: what a forward pass does from then on belongs to the next step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard

UPDATES, BAD = 8, 5


def train(guard_dir: Path | None, clears: str, bad: int | None, skip: int | None) -> dict[str, Any]:
    """A critic and a generator; the critic's loss reaches the generator, too, which does not step for it."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    critic = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    g, c = (torch.optim.Adam(net.parameters(), lr=0.01) for net in (generator, critic))
    batches = list(torch.randn(UPDATES, 6, 3).unbind())
    guard = Guard({"g": generator, "c": critic}, [g, c], run_dir=guard_dir, quiet=True) if guard_dir else None
    for number, z in enumerate(guard.watch(batches) if guard is not None else batches):
        c.zero_grad()
        critic(generator(z)).mean().backward()  # not detached: the generator has gradients now
        c.step()
        if number == skip:
            g.zero_grad()
            continue
        generator_turn(generator, critic, g, z * float("nan") if number == bad else z, clears)
    if guard is not None:
        guard.close()
    return {
        "generator": generator.state_dict(),
        "critic": critic.state_dict(),
        "moments": [o.state_dict()["state"] for o in (g, c)],
        "random": torch.get_rng_state(),
    }


def generator_turn(
    generator: nn.Module, critic: nn.Module, g: torch.optim.Optimizer, z: Tensor, clears: str
) -> None:
    if clears == "before the forward pass":
        g.zero_grad()
    loss = -critic(generator(z)).mean()
    if clears == "after it":
        g.zero_grad()
    elif clears == "in place":
        g.zero_grad(set_to_none=False)
    loss.backward()
    g.step()


def differing(one: Any, other: Any, name: str = "") -> list[str]:
    if isinstance(one, Tensor):
        return [] if torch.equal(one, other) else [name]
    if isinstance(one, dict):
        return [found for key in one for found in differing(one[key], other[key], f"{name}.{key}")]
    if isinstance(one, list):
        return [
            f for i, (a, b) in enumerate(zip(one, other, strict=True)) for f in differing(a, b, f"{name}.{i}")
        ]
    return [] if one == other else [name]


@pytest.mark.parametrize("clears", ["before the forward pass", "after it", "in place"])
def test_a_bad_second_turn_leaves_no_trace_and_the_first_stays(tmp_path: Path, clears: str) -> None:
    reference = train(None, clears, None, BAD)
    guarded = train(tmp_path, clears, BAD, None)
    assert differing(reference, guarded) == []


@pytest.mark.parametrize("clears", ["before the forward pass", "after it", "in place"])
def test_a_healthy_run_is_left_as_it_is(tmp_path: Path, clears: str) -> None:
    assert differing(train(None, clears, None, None), train(tmp_path, clears, None, None)) == []
    from torch.nn.modules import module

    assert not module._global_forward_pre_hooks
