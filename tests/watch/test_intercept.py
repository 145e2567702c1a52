"""Listening to an ordinary loop: everything it does is heard once, and everything is put back afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim import LBFGS, SGD, Optimizer
from torch.utils.checkpoint import checkpoint

from stayfinite.watch.intercept import intercept


class Heard:
    """Writes down what it hears and lets everything happen."""

    def __init__(self, norm: Tensor | None = None) -> None:
        self.log: list[str] = []
        self.roots: list[float] = []
        self.norm = norm

    def before_backward(self) -> str:
        return "before"

    def saw_backward(self, roots: Sequence[Tensor], before: str) -> None:
        assert before == "before"
        self.log.append("backward")
        self.roots += [float(root.detach()) for root in roots]

    def saw_clip(self, gradients: Sequence[Tensor]) -> Tensor | None:
        self.log.append(f"clip {len(gradients)}")
        return self.norm

    def wants_step(self, optimizer: Optimizer, step: Callable[[], Any], closure: Any) -> Any:
        self.log.append("closure step" if closure else "step")
        return step()

    def wants_scaler_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any:
        self.log.append("scaler step")
        return step()

    def wants_scaler_update(self, update: Callable[[], None], *, forced: bool) -> None:
        self.log.append("forced scaler update" if forced else "scaler update")
        update()


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def test_a_plain_loop_body_is_heard_in_order(model: nn.Module) -> None:
    optimizer, heard = SGD(model.parameters(), 0.1), Heard()
    with intercept(heard, [optimizer], None):
        loss = model(torch.ones(3, 2)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert heard.log == ["backward", "clip 4", "step"]
    assert heard.roots == [float(loss.detach())]


def test_everything_is_put_back_even_after_an_error(model: nn.Module) -> None:
    optimizer, scaler = SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    before = torch.autograd.backward, clip_grad._get_total_norm, dict(vars(optimizer)), dict(vars(scaler))
    with pytest.raises(KeyError), intercept(Heard(), [optimizer], scaler):
        assert torch.autograd.backward is not before[0]
        raise KeyError
    assert (torch.autograd.backward, clip_grad._get_total_norm) == before[:2]
    assert vars(optimizer).keys() == before[2].keys() and vars(scaler).keys() == before[3].keys()


def test_a_scheduler_keeps_its_mark_on_the_step(model: nn.Module) -> None:
    """LRScheduler wraps optimizer.step on the instance; it must find its wrapper there during and after the loop."""
    optimizer = SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    wrapped = optimizer.step
    with intercept(Heard(), [optimizer], None):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
    assert optimizer.step == wrapped
    optimizer.step()
    scheduler.step()


def test_backward_within_backward_is_one_backward(model: nn.Module) -> None:
    heard = Heard()
    x = torch.ones(3, 2, requires_grad=True)
    with intercept(heard, [], None):
        hidden = checkpoint(model[:2], x, use_reentrant=True)
        loss = model[2](hidden).mean()
        loss.backward()
    assert heard.log == ["backward"] and heard.roots == [float(loss.detach())]


def test_a_backward_that_fails_is_not_heard_and_the_next_one_is(model: nn.Module) -> None:
    heard = Heard()
    with intercept(heard, [], None):
        with pytest.raises(RuntimeError, match="scalar"):
            model(torch.ones(3, 2)).backward()
        assert heard.log == []
        model(torch.ones(3, 2)).sum().backward()
    assert heard.log == ["backward"]


def test_roots_with_gradients_of_their_own_and_several_roots(model: nn.Module) -> None:
    heard = Heard()
    with intercept(heard, [], None):
        out = model(torch.ones(3, 2))
        out.backward(torch.ones_like(out))
        torch.autograd.backward([model(torch.ones(1, 2)).sum(), model(torch.zeros(1, 2)).sum()])
    assert heard.log == ["backward", "backward"] and len(heard.roots) == 3
    assert heard.roots[0] == pytest.approx(float(out.detach().sum()))


def test_a_norm_that_was_measured_is_used_and_others_are_computed(model: nn.Module) -> None:
    model(torch.ones(3, 2)).sum().backward()
    real = float(nn.utils.clip_grad_norm_(model.parameters(), 1e9))
    with intercept(Heard(torch.tensor(123.0)), [], None):
        assert float(nn.utils.clip_grad_norm_(model.parameters(), 1e9)) == 123.0
        assert float(nn.utils.clip_grad_norm_(model.parameters(), 1e9, norm_type=1.0)) != 123.0
        assert float(nn.utils.clip_grad_norm_(model.parameters(), 1e9, error_if_nonfinite=True)) == real
    assert float(nn.utils.clip_grad_norm_(model.parameters(), 1e9)) == real


def test_closures_and_scalers(model: nn.Module) -> None:
    heard, optimizer = Heard(), LBFGS(model.parameters(), max_iter=1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 2)).square().mean()
        loss.backward()
        return loss

    with intercept(heard, [optimizer], None):
        assert optimizer.step(closure) is not None
    assert heard.log[0] == "closure step" and "backward" in heard.log

    heard, sgd, scaler = Heard(), SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=2.0)
    with intercept(heard, [sgd], scaler):
        scaler.scale(model(torch.ones(3, 2)).sum()).backward()
        scaler.step(sgd)
        scaler.update()
        scaler.update(new_scale=4.0)
    assert heard.log == ["backward", "scaler step", "step", "scaler update", "forced scaler update"]
    assert scaler.get_scale() == 4.0


def test_a_wrapper_somebody_else_puts_on_later_is_left(model: nn.Module) -> None:
    optimizer = SGD(model.parameters(), 0.1)
    with intercept(Heard(), [optimizer], None):
        theirs = lambda *args: None  # noqa: E731
        optimizer.step = theirs  # type: ignore[method-assign]
    assert optimizer.step is theirs
