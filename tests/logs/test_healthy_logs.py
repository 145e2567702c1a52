"""Healthy logs of every kind stay silent: noise, warm-up, restarts, cycles, GANs, returns, negative losses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from logs.made import codes
from watch.healthy_series import HEALTHY

STEPS = 2000
FLAT = ("exactly constant", "tiny and almost constant")  # LOG010 is right about them


@pytest.mark.parametrize("kind", [kind for kind in HEALTHY if kind not in FLAT])
def test_noise_of_every_kind(kind: str) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        loss, norm = HEALTHY[kind](rng), [abs(value) + 0.1 for value in HEALTHY[kind](rng)]
        rate = [min(1.0, step / 100) * 1e-3 for step in range(len(loss))]
        assert codes({"loss": loss, "grad_norm": norm, "lr": rate}) == [], seed
        assert codes({"loss": loss[:120], "grad_norm": norm[:120], "lr": rate[:120]}) == [], seed


def _cosine(step: int) -> float:
    return 1e-3 * (0.5 + 0.5 * math.cos(math.pi * (step % 250) / 250))


def _falling(rng: random.Random, step: int) -> float:
    return 2.5 * math.exp(-step / 400) + 0.4 + abs(rng.gauss(0, 0.05))


Run = Callable[[random.Random], dict[str, list[float]]]


def _run(**columns: Callable[[random.Random, int], float]) -> Run:
    return lambda rng: {name: [make(rng, step) for step in range(STEPS)] for name, make in columns.items()}


RUNS: dict[str, Run] = {
    "adversarial losses that oscillate": _run(
        loss_G=lambda r, s: 1 + 0.9 * math.sin(s / 9) + abs(r.gauss(0, 0.3)),
        loss_D=lambda r, s: 0.7 + 0.3 * math.cos(s / 9) + abs(r.gauss(0, 0.1)),
        loss=lambda r, s: (1 + s / 200) * math.exp(r.gauss(0, 0.4)),
    ),
    "returns that wander, a value loss that grows with them": _run(
        episode_return=lambda r, s: s / 5 + r.gauss(0, 40),
        policy_loss=lambda r, s: r.gauss(0, 0.02),
        loss=lambda r, s: (1 + s / 20) * math.exp(r.gauss(0, 0.6)),
    ),
    "cyclic learning rate": _run(
        loss=lambda r, s: _falling(r, s) + 300 * _cosine(s),
        lr=lambda r, s: _cosine(s),
        grad_norm=lambda r, s: 1 + 800 * _cosine(s) + abs(r.gauss(0, 0.3)),
    ),
    "float16 with a scaler that finds its scale": _run(
        loss=_falling,
        grad_norm=lambda r, s: math.inf if s in (0, 1, 2, 700, 1500) else 1 + abs(r.gauss(0, 0.2)),
        loss_scale=lambda r, s: 65536 / 2 ** min(s + 1, 3) if s < 700 else 4096.0 if s < 1500 else 2048.0,
    ),
    "a scale that grows": _run(loss=_falling, loss_scale=lambda r, s: 2.0 ** (10 + s // 200)),
    "a margin loss that reaches zero": _run(loss=lambda r, s: max(0.0, 0.5 - s / 600 + r.gauss(0, 0.05))),
    "a loss that decays to exactly zero": _run(loss=lambda r, s: 2 * math.exp(-s / 20) if s < 900 else 0.0),
    "a loss written with two decimals": _run(loss=lambda r, s: round(0.4 + math.exp(-s / 30), 2)),
    "a negative loss": _run(
        loss=lambda r, s: -100 - s / 10 + r.gauss(0, 6), grad_norm=lambda r, s: 3 + abs(r.gauss(0, 1))
    ),
    "an annealed term that raises the total": _run(
        loss=lambda r, s: 300 * math.exp(-s / 100) + 80 + min(1, s / 700) * 40 + r.gauss(0, 3),
        kl_loss=lambda r, s: min(40, s / 18) + abs(r.gauss(0, 1)),
    ),
    "one cycle": _run(
        loss=_falling,
        lr=lambda r, s: 1e-3 * (s / 600 if s < 600 else (2000 - s) / 1400),
        grad_norm=lambda r, s: 1 + abs(r.gauss(0, 0.3)),
    ),
    "a metric that has no value at first": _run(loss=_falling, val_f1=lambda r, s: math.nan if s < 100 else 0.5),
    "few skips": _run(loss=_falling, skipped=lambda r, s: float(s % 100 == 0)),
    "a high success rate in per cent": _run(loss=_falling, success_rate=lambda r, s: 99.0 + r.random()),
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_healthy_runs(kind: str) -> None:
    for seed in range(3):
        assert codes(RUNS[kind](random.Random(seed))) == [], seed


def test_steps_that_begin_anew_each_epoch_are_no_resume() -> None:
    rng = random.Random(0)
    loss = [_falling(rng, step) for step in range(STEPS)]
    assert codes({"loss": loss}, [step % 100 for step in range(STEPS)]) == []


def test_a_resume_that_goes_on_where_it_was() -> None:
    rng = random.Random(0)
    steps = [*range(1000), *range(900, 2000)]
    loss = [_falling(rng, step) for step in steps]
    rate = [1e-3 * (1 - step / 4000) for step in steps]
    assert codes({"loss": loss, "lr": rate}, steps) == []


def test_validation_under_an_older_step_is_no_resume() -> None:
    rng = random.Random(0)
    steps = [float(step) if step % 50 else float(max(step - 1, 0)) for step in range(STEPS)]
    assert codes({"loss": [_falling(rng, step) for step in range(STEPS)]}, steps) == []


def test_a_long_calm_run_that_began_long_ago_is_no_plateau() -> None:
    rng = random.Random(0)
    loss = [1.83 + rng.gauss(0, 0.01) for _ in range(STEPS)]
    assert codes({"loss": loss}, range(50_000, 50_000 + STEPS)) == []


def test_a_very_short_log() -> None:
    assert codes({"loss": [2.3, 1.9, 1.5]}) == []
    assert codes({"loss": [2.3]}) == []
