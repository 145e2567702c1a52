"""Resumes as real scripts make them: renamed files, files in memory, several optimizers, rollbacks."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import Place, RunRecord
from stayfinite.observers.run_observers import RunObservers

Parts = tuple[torch.nn.Module, torch.optim.Optimizer]


@pytest.fixture
def observers() -> Iterator[RunObservers]:
    found = RunObservers()
    found.install()
    yield found
    found.remove()


def build() -> Parts:
    net = torch.nn.Linear(3, 1)
    return net, torch.optim.Adam(net.parameters(), 1e-2)


def train(parts: Parts, observers: RunObservers, losses: list[float]) -> None:
    net, opt = parts
    for loss in losses:
        opt.zero_grad()
        net(torch.ones(3)).sum().backward()
        observers.history.running.losses = [loss]
        opt.step()


def code(place: Place) -> str:
    return linecache.getline(place.file or "", place.line or 0)


def test_a_renamed_file_is_known_again(observers: RunObservers, tmp_path: Path) -> None:
    net, opt = build()
    train((net, opt), observers, [float(i) for i in range(1, 41)])
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, tmp_path / "part")
    (tmp_path / "part").rename(tmp_path / "whole")
    train((net, opt), observers, [50.0, 51.0])
    again = build()
    state = torch.load(tmp_path / "whole")
    again[0].load_state_dict(state["net"])
    again[1].load_state_dict(state["opt"])
    train(again, observers, [7.0, 8.0, 9.0])
    (resume,) = observers.resumes.facts()
    assert resume.before == tuple(float(i) for i in range(9, 41))
    assert resume.went_on == (50.0, 51.0)
    assert resume.after == (7.0, 8.0, 9.0)
    assert resume.saved_optimizer
    assert resume.optimizer_loaded
    assert resume.has_moments
    assert resume.rate_saved == resume.rate_used == 1e-2
    assert "torch.save" in code(resume.saved)
    assert "torch.load" in code(resume.loaded)


def test_weights_alone_and_a_scheduler(observers: RunObservers) -> None:
    first = build()
    schedule = torch.optim.lr_scheduler.StepLR(first[1], 100)
    train(first, observers, [1.0] * 12)
    for _ in range(12):
        schedule.step()
    second = build()
    other = torch.optim.lr_scheduler.StepLR(second[1], 100)
    second[0].load_state_dict(first[0].state_dict())
    other.load_state_dict(schedule.state_dict())
    train(second, observers, [1.0] * 3)
    (resume,) = observers.resumes.facts()
    assert resume.scheduler_epoch == 12
    assert not resume.has_moments
    assert not resume.optimizer_loaded
    assert resume.adaptive
    assert "first[0].state_dict()" in code(resume.saved)  # kept in memory
    assert len(resume.before) == 12
    assert "other.load_state_dict" in code(resume.loaded)


def test_going_back_is_no_resume_and_twins_are_not_guessed(observers: RunObservers, tmp_path: Path) -> None:
    net, opt = build()
    twin = build()
    for parts in ((net, opt), twin):
        train(parts, observers, [1.0] * 12)
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, tmp_path / "both")
    state = torch.load(tmp_path / "both")
    net.load_state_dict(state["net"])
    opt.load_state_dict(state["opt"])
    train((net, opt), observers, [1.0] * 3)
    assert observers.resumes.facts() == ()
    again = build()
    again[0].load_state_dict(torch.load(tmp_path / "both")["net"])
    train(again, observers, [1.0] * 3)
    (resume,) = observers.resumes.facts()
    assert resume.before == ()
    assert resume.rate_saved is None


def test_a_wrapper_that_loads_the_empty_state_it_has_just_read_resumes_nothing(
    observers: RunObservers,
) -> None:
    """As Accelerate's `prepare` does, in the middle of a warm-up that began before it."""
    net, opt = build()
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, (step + 1) / 5))
    opt.load_state_dict(opt.state_dict())
    for _ in range(12):
        train((net, opt), observers, [1.0])
        schedule.step()
    seen = FailedStep(12, "state", "parameter", RunRecord(complete=True))
    assert [finding.code for finding in explain(observers.complete(seen))] == []


@pytest.mark.parametrize(
    ("steps", "decayed", "missing"), [(0, False, False), (5, False, True), (0, True, True)]
)
def test_a_state_without_moments_is_a_loss_only_where_steps_were_taken(
    observers: RunObservers, steps: int, decayed: bool, missing: bool
) -> None:
    """A file of the weights that everything begins with holds a fresh optimizer."""
    train(build(), observers, [1.0] * steps)
    _, other = build()
    schedule = torch.optim.lr_scheduler.ExponentialLR(other, 0.9)
    if decayed:
        other.param_groups[0]["lr"] = schedule.get_last_lr()[0] * 0.9
    state = {**other.state_dict(), "state": {}}
    net, opt = build()
    opt.load_state_dict(state)
    train((net, opt), observers, [1.0] * 3)
    assert [load.moments_missing for load in observers.optimizers.load_events()] == [missing]


def test_a_group_may_have_no_learning_rate(observers: RunObservers) -> None:
    """Optimizers that find their rate themselves keep None, or no key at all."""

    class OwnRate(torch.optim.Optimizer):
        def __init__(self, parameters: list[torch.nn.Parameter], **settings: object) -> None:
            super().__init__(parameters, {"betas": (0.9, 0.999), **settings})

    for settings in ({}, {"lr": None}):
        saved, loaded = (OwnRate([torch.nn.Parameter(torch.ones(2))], **settings) for _ in range(2))
        loaded.load_state_dict(saved.state_dict())
    assert not any(load.moments_missing for load in observers.optimizers.load_events())
