"""What a script finds in `p.grad` after an update that was refused without its knowledge."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from trials.bits import bits, differing

from guard.small_training import Training, batches, spoiled

DATA = batches(6)


def trained(data: list[Tensor], folder: Path) -> tuple[Training, list[float]]:
    """A loop that reads its gradients after the step, as a histogram does."""
    training, norms = Training(), list[float]()
    guard = training.guard(folder, prove="off")
    for x in guard.watch(data):
        training.optimizer.zero_grad(set_to_none=True)
        training.loss(x).backward()
        training.optimizer.step()
        norms.append(max(float(p.grad.abs().max()) for p in training.model.parameters()))  # type: ignore[union-attr]
    guard.close()
    return training, norms


def test_a_gradient_can_be_read_after_a_refused_update(tmp_path: Path) -> None:
    """It was None there: `torch.isnan(p.grad)` raised in a script in which plain python goes on."""
    _, norms = trained([*DATA[:3], spoiled(DATA[3]), *DATA[4:]], tmp_path)
    assert norms[3] == 0.0 and all(norm > 0 for norm in norms[:3] + norms[4:])


def test_it_is_gone_before_anything_is_added_to_it(tmp_path: Path) -> None:
    """A parameter that the next batch does not reach has no gradient, and is not moved by a gradient of zero."""
    weights = []
    for data in ([DATA[0], spoiled(DATA[1]), DATA[2]], [DATA[0], DATA[2]]):
        torch.manual_seed(0)
        training = Training()
        unused = torch.nn.Parameter(torch.ones(2))
        training.model.register_parameter("unused", unused)
        training.optimizer.add_param_group({"params": [unused], "weight_decay": 0.1})
        guard = training.guard(tmp_path / str(len(data)), prove="off")
        for number, x in enumerate(guard.watch(data)):
            reaches = len(data) == 3 and number == 1
            (training.loss(x) + (unused.sum() if reaches else 0.0)).backward()
            training.optimizer.step()
            if number != 1 or not reaches:  # as scripts do that clear after a good step only
                training.optimizer.zero_grad(set_to_none=True)
        guard.close()
        weights.append(bits(model=training.model, generators=False))
    assert not differing(*weights)


def test_a_second_step_without_a_backward_pass_finds_nothing_to_do(tmp_path: Path) -> None:
    training = Training()
    guard = training.guard(tmp_path, prove="off")
    for x in guard.watch([DATA[0], spoiled(DATA[1]), DATA[2]]):
        training.optimizer.zero_grad(set_to_none=True)
        training.loss(x).backward()
        training.optimizer.step()
        if bool(x.isnan().any()):
            training.optimizer.step()
            assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in training.model.parameters())  # type: ignore[arg-type]
    assert (guard.counters.applied, guard.counters.skipped) == (2, 1)
    guard.close()
