"""`optimizer.step(closure)`: a closure is a forward and a backward pass, whatever optimizer evaluates it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard

BAD = 5


class OwnSgd(torch.optim.Optimizer):
    """An optimizer that nobody knows, as users write them."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        self._move(1.0)
        return loss

    def _move(self, factor: float) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(factor * group["lr"] * parameter.grad)


class Sharpness(OwnSgd):
    """Looks at the gradient elsewhere: its closure is evaluated after it has moved, and once more."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self._move(-0.5)
        with torch.enable_grad():
            loss = closure()
        self._move(0.5)
        self._move(1.0)
        return loss


def _train(
    kind: Callable[..., Any], folder: Path | None, *, bad: bool
) -> tuple[nn.Module, Guard | None, list[list[Tensor]], int]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = kind(model.parameters(), lr=0.05)
    batches = [torch.rand(4, 3) for _ in range(10)]
    batches[BAD] += 1
    guard = Guard(model, optimizer, run_dir=folder, policy="skip", quiet=True) if folder is not None else None
    weights: list[list[Tensor]] = []
    evaluations = 0
    for batch in guard.watch(batches) if guard is not None else batches:

        def closure(batch: Tensor = batch) -> Tensor:
            nonlocal evaluations
            evaluations += 1
            optimizer.zero_grad()
            out = model(batch).square().mean()
            if bad and batch.min() >= 1:
                out = out + torch.log(out * 0)  # born here
            out.backward()
            return out

        if kind is Sharpness:
            closure()
        optimizer.step(closure)
        weights.append([p.detach().clone() for p in model.parameters()])
    if guard is not None:
        guard.close()
    return model, guard, weights, evaluations


@pytest.mark.parametrize("kind", [OwnSgd, Sharpness, torch.optim.LBFGS, torch.optim.SGD])
def test_healthy_is_bit_identical_and_evaluated_as_often(kind: Any, tmp_path: Path) -> None:
    plain, _, _, often = _train(kind, None, bad=False)
    watched, guard, _, as_often = _train(kind, tmp_path, bad=False)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert often == as_often
    assert guard is not None and guard.counters.applied == 10


@pytest.mark.parametrize("kind", [OwnSgd, torch.optim.LBFGS, torch.optim.SGD])
def test_a_bad_loss_is_no_bad_update(kind: Any, tmp_path: Path) -> None:
    _, guard, weights, _ = _train(kind, tmp_path, bad=True)
    assert guard is not None and guard.counters.skipped == 1
    (file,) = tmp_path.glob("incidents/*/incident.json")
    incident = json.loads(file.read_text())
    lines = Path(__file__).read_text().splitlines()
    born = next(n for n, line in enumerate(lines, 1) if line.endswith("# born here"))
    assert (incident["trigger"], incident["phase"], incident["birth"]["line"]) == ("loss", "forward", born)
    before, after = weights[BAD - 1], weights[BAD]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_refused_step_gives_its_loss_all_the_same(tmp_path: Path) -> None:
    """`losses.append(optimizer.step(closure).item())` is how L-BFGS is used: None would end the script."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    given: list[float] = []
    batches = [torch.rand(4, 3), torch.full((4, 3), float("nan")), torch.rand(4, 3)]
    with Guard(model, optimizer, run_dir=tmp_path, policy="skip", quiet=True, prove="off") as guard:
        for batch in guard.watch(batches):

            def closure(batch: Tensor = batch) -> Tensor:
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                return loss

            given.append(optimizer.step(closure).item())
        assert guard.counters.skipped == 1
    assert [math.isnan(loss) for loss in given] == [False, True, False]
