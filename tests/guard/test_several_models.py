"""Two of everything: each scheduler and each average goes with its own optimizer and model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel
from trials.bits import bits, differing
from trials.tables import HandMade

from guard.small_training import NAN, batches
from stayfinite import Guard

pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR's own, before torch 2.7
DATA = batches(8)
BAD = 3
Bad = dict[str, set[int]]


class Gan:
    """`turns`: whose turn it is, in order, in one body. `same`: both networks have the same shapes."""

    def __init__(
        self, turns: str = "cg", average: type[nn.Module] = AveragedModel, same: bool = False
    ) -> None:
        torch.manual_seed(4)
        hidden = 4 if same else 7
        self.g = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.c = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 4))
        self.models = {"g": self.g, "c": self.c}
        self.optimizers = {
            "g": Adam(self.g.parameters(), 0.01),
            "c": SGD(self.c.parameters(), 0.02, momentum=0.9),
        }
        of_g = self.optimizers["g"]
        self.schedulers: dict[str, Any] = {
            "g": SequentialLR(of_g, [StepLR(of_g, 1, 0.5), ExponentialLR(of_g, 0.9)], [3]),
            "c": StepLR(self.optimizers["c"], 2, 0.7),
        }
        self.averages: dict[str, Any] = {name: average(model) for name, model in self.models.items()}
        self.turns = turns

    def loss(self, whose: str, x: Tensor, spoil: float) -> Tensor:
        made = self.g(x)
        if whose == "c":
            return (self.c(made.detach()).square().mean() - self.c(x).mean()) * spoil
        return (self.c(made) - 1).square().mean() * spoil

    def loop(self, data: Iterable[Tensor], bad: Bad, *, sees_bad: bool) -> None:
        for x in data:
            number = next(i for i, each in enumerate(DATA) if each is x)
            for whose in self.turns:
                is_bad = number in bad.get(whose, ())
                if is_bad and not sees_bad:
                    continue
                self.optimizers[whose].zero_grad()
                self.loss(whose, x, NAN if is_bad else 1.0).backward()
                self.optimizers[whose].step()
                self.schedulers[whose].step()
                update = getattr(self.averages[whose], "update_parameters", None)
                (update or self.averages[whose].update)(self.models[whose])

    def steps(self, guard: Guard, bad: Bad) -> None:
        for number, x in enumerate(DATA):
            for whose in self.turns:
                spoil = NAN if number in bad.get(whose, ()) else 1.0
                result = guard.step(
                    lambda w=whose, x=x, s=spoil: self.loss(w, x, s), optimizer=self.optimizers[whose]
                )
                assert result.applied is (spoil == 1.0)

    def guard(self, folder: Path, ema: list[str] = ["g", "c"], **options: Any) -> Guard:  # noqa: B006
        return Guard(
            self.models,
            list(self.optimizers.values()),
            [self.schedulers["c"], self.schedulers["g"]],
            ema=[self.averages[name] for name in ema],
            run_dir=folder,
            policy="skip",
            quiet=True,
            **options,
        )

    def bits(self) -> dict[str, Any]:
        return bits(
            models=list(self.models.values()),
            optimizers=list(self.optimizers.values()),
            schedulers=list(self.schedulers.values()),
            averages=list(self.averages.values()),
            g=self.g,
            c=self.c,
            ema_g=self.averages["g"],
            ema_c=self.averages["c"],
        )


def assert_as_without(gan: Gan, bad: Bad, **made: Any) -> None:
    found = gan.bits()
    plain = Gan(gan.turns, **made)
    plain.loop(DATA, bad, sees_bad=False)
    assert differing(found, plain.bits()) == []


FAULTS: dict[str, Bad] = {
    "none": {},
    "the critic": {"c": {BAD}},
    "the generator": {"g": {BAD}},
    "both": {"c": {BAD}, "g": {BAD + 2}},
    "the critic three times": {"c": {2, 3, 4}},
}


def every(first: object, second: object) -> list[Any]:
    """Two ways with every fault and every order of turns.

    Quick are the first way with every fault in one order, and both with faults of both networks in every order.
    """
    return [
        pytest.param(way, fault, turns, marks=() if quick else pytest.mark.long)
        for way in (first, second)
        for fault in FAULTS
        for turns in ("cg", "gc", "ccg")
        for quick in [fault == "both" or (way is first and turns == "cg")]
    ]


@pytest.mark.parametrize(("average", "fault", "turns"), every(AveragedModel, HandMade))
def test_a_gan_by_step(tmp_path: Path, turns: str, fault: str, average: type[nn.Module]) -> None:
    gan = Gan(turns, average)
    gan.steps(gan.guard(tmp_path), FAULTS[fault])
    assert_as_without(gan, FAULTS[fault], average=average)


@pytest.mark.parametrize(("locate", "fault", "turns"), every(False, True))
def test_a_gan_in_a_watched_loop(tmp_path: Path, turns: str, fault: str, locate: bool) -> None:
    """What the body does to the schedule and the average of a good turn stays, also beside a refused one."""
    gan = Gan(turns)
    guard = gan.guard(tmp_path, locate=locate)
    gan.loop(guard.watch(DATA), FAULTS[fault], sees_bad=True)
    assert_as_without(gan, FAULTS[fault])


def test_an_average_is_of_the_model_it_looks_like(tmp_path: Path) -> None:
    """Given in another order than the models."""
    gan = Gan()
    gan.steps(gan.guard(tmp_path, ema=["c", "g"]), FAULTS["the critic"])
    assert_as_without(gan, FAULTS["the critic"])


def test_averages_of_models_of_the_same_shape_go_by_their_order(tmp_path: Path) -> None:
    gan = Gan(same=True)
    gan.steps(gan.guard(tmp_path), FAULTS["the generator"])
    assert_as_without(gan, FAULTS["the generator"], same=True)


def test_an_average_of_one_of_two_models(tmp_path: Path) -> None:
    """Only the generator is averaged, as usual: the critic's steps do not touch it."""
    gan = Gan()
    gan.steps(gan.guard(tmp_path, ema=["g"]), {})
    found = gan.bits()
    plain = Gan()
    plain.averages["c"] = AveragedModel(plain.c)
    plain.loop(DATA, {}, sees_bad=False)
    expected = plain.bits()
    names = [n for n in differing(found, expected) if not n.startswith(("ema_c", "averages.1"))]
    assert names == []


def test_one_optimizer_of_two_has_a_schedule(tmp_path: Path) -> None:
    """One loss, two optimizers, a schedule for the head alone, and one average of the whole."""

    def make() -> tuple[Any, ...]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizers = [SGD(model[0].parameters(), 0.05), Adam(model[1].parameters(), 0.01)]
        return model, optimizers, StepLR(optimizers[1], 1, 0.5), AveragedModel(model)

    model, optimizers, scheduler, average = make()
    guard = Guard(model, optimizers, scheduler, ema=average, run_dir=tmp_path, quiet=True)
    for number, x in enumerate(DATA):
        guard.step(lambda x=x, n=number: model(x).square().mean() * (NAN if n == BAD else 1.0))
    guard.step(lambda: model(DATA[0]).square().mean(), optimizer=optimizers[0])
    found = bits(model=model, optimizers=optimizers, scheduler=scheduler, average=average)

    model, optimizers, scheduler, average = make()
    for x in [*DATA[:BAD], *DATA[BAD + 1 :], DATA[0]]:
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizers[0].step()
        if x is not DATA[0] or scheduler.last_epoch == 0:
            optimizers[1].step()
            scheduler.step()
        average.update_parameters(model)
    assert (
        differing(found, bits(model=model, optimizers=optimizers, scheduler=scheduler, average=average)) == []
    )
