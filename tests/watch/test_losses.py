"""What a step function may return, and what it is told when it returns something else."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from stayfinite.watch.losses import as_loss, require_gradient


def leaf(value: float) -> torch.Tensor:
    return torch.tensor(value, requires_grad=True)


def test_a_tensor_is_the_loss_itself() -> None:
    loss = leaf(2.0)
    assert as_loss(loss).total is loss and as_loss(loss).components == {}
    shaped = torch.ones(1, 1, requires_grad=True)
    assert as_loss(shaped).total.shape == ()


def test_named_components_are_summed() -> None:
    parts = OrderedDict(reconstruction=leaf(2.0), kl=leaf(0.5), penalty=leaf(0.25))
    read = as_loss(parts)
    assert read.total == 2.75 and read.components == parts
    read.total.backward()
    assert [part.grad for part in parts.values()] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("key", ["loss", "total"])
def test_a_total_among_them_is_trained_alone(key: str) -> None:
    total, part = leaf(2.0), leaf(9.0)
    read = as_loss({"part": part, key: total})
    assert read.total is total and read.components == {"part": part}


def test_loss_wins_over_total() -> None:
    read = as_loss({"total": leaf(1.0), "loss": leaf(2.0)})
    assert read.total == 2.0 and list(read.components) == ["total"]


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (None, TypeError, r"must return the loss.*NoneType"),
        (2.5, TypeError, r"must return the loss.*float"),
        ([torch.ones(())], TypeError, r"must return the loss.*list"),
        ({}, ValueError, r"empty dict"),
        (torch.ones(3), ValueError, r"shape \(3,\).*\.mean\(\)"),
        (torch.ones(0), ValueError, r"shape \(0,\)"),
        (torch.ones((), dtype=torch.complex64), TypeError, r"complex.*real part"),
        ({"kl": torch.ones(2)}, ValueError, r"component 'kl' has shape \(2,\)"),
        ({"kl": 0.3}, TypeError, r"component 'kl' is a float.*\.item\(\)"),
        ({"loss": torch.ones(()), "logits": torch.ones(2, 3)}, ValueError, r"component 'logits'"),
    ],
)
def test_anything_else_is_told_what_to_do(value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        as_loss(value)


def test_a_loss_without_gradient_is_told_why() -> None:
    require_gradient(leaf(1.0))
    with pytest.raises(ValueError, match=r"detached or every input is frozen.*\.detach\(\)"):
        require_gradient(torch.ones(()))
    with torch.no_grad(), pytest.raises(ValueError, match=r"no_grad\(\) is active"):
        require_gradient(leaf(1.0) * 2)
