"""A streak of refusals is located once: steps after a located one are not followed op by op."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from stayfinite import Guard
from stayfinite.replay.tracer import is_followed


def healthy(out: Tensor) -> Tensor:
    return out.square().mean()


def bad_loss(out: Tensor) -> Tensor:
    return (out * 0).sum().log().abs()


def bad_gradient(out: Tensor) -> Tensor:
    return (out * 0).abs().sum().sqrt()


_LOSSES = {".": healthy, "L": bad_loss, "G": bad_gradient}


def followed_steps(run_dir: Path, kinds: str) -> list[bool]:
    """Train with a loss of this kind a step (`.` healthy); which bodies ran under the tracer in this process."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = Guard(model, optimizer, run_dir=run_dir, quiet=True, policy="skip", prove="off")
    followed = []
    for kind in guard.watch(list(kinds)):
        followed.append(is_followed())
        out = model(torch.randn(3, 4))
        loss = _LOSSES[kind](out)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    guard.close()
    return followed


def test_what_was_located_is_not_followed_again(tmp_path: Path) -> None:
    assert not any(followed_steps(tmp_path, "..LLLLLL"))


def test_another_kind_of_failure_in_the_same_streak_is_followed(tmp_path: Path) -> None:
    followed = followed_steps(tmp_path, "..LLGGG.")
    assert followed == [False] * 5 + [True] + [False] * 2


def test_a_new_streak_is_looked_at_anew(tmp_path: Path) -> None:
    followed_steps(tmp_path, "..LL..GG")
    assert len(list((tmp_path / "incidents").iterdir())) == 2
