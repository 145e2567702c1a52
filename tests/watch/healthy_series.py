"""Twenty kinds of healthy noisy series, as losses and gradient norms of real runs look. Seeded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

STEPS = 2000
Series = Callable[[random.Random], list[float]]


def _map(function: Callable[[random.Random, int], float]) -> Series:
    return lambda rng: [function(rng, step) for step in range(STEPS)]


def _walk(start: float, noise: float, pull: float) -> Series:
    def series(rng: random.Random) -> list[float]:
        value, values = math.log(start), []
        for _ in range(STEPS):
            value += rng.gauss(0, noise) + pull * (math.log(start) - value)
            values.append(math.exp(value))
        return values

    return series


def _student(rng: random.Random, freedom: int) -> float:
    return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(freedom / 2, 2) / freedom)


HEALTHY: dict[str, Series] = {
    "gaussian": _map(lambda r, s: 2.0 + r.gauss(0, 0.2)),
    "uniform": _map(lambda r, s: r.uniform(0.5, 1.5)),
    "lognormal 0.3": _map(lambda r, s: math.exp(r.gauss(0, 0.3))),
    "lognormal 1.0": _map(lambda r, s: math.exp(r.gauss(0, 1.0))),
    "exponential": _map(lambda r, s: r.expovariate(1.0)),
    "gamma of shape 2": _map(lambda r, s: r.gammavariate(2.0, 0.5)),
    "student t of 5 about 10": _map(lambda r, s: 10.0 + _student(r, 5)),
    "student t of 5 in logarithms": _map(lambda r, s: math.exp(0.2 * _student(r, 5))),
    "Pareto of index 2": _map(lambda r, s: r.paretovariate(2.0)),
    "decaying": _map(lambda r, s: 8.0 * math.exp(-s / 400) + 0.5 + r.gauss(0, 0.05)),
    "power law": _map(lambda r, s: 10.0 * (s + 1) ** -0.4 * math.exp(r.gauss(0, 0.1))),
    "slowly rising": _map(lambda r, s: (1.0 + s / 500) * math.exp(r.gauss(0, 0.2))),
    "random walk in logarithms": _walk(1.0, 0.05, 0.01),
    "two kinds of batches": _map(
        lambda r, s: (3.0 if r.random() < 0.15 else 1.0) * math.exp(r.gauss(0, 0.1))
    ),
    "schedule: falls at each step": _map(lambda r, s: 2.0 * 0.6 ** (s // 500) + abs(r.gauss(0, 0.05))),
    "schedule: warm restarts": _map(
        lambda r, s: (1.0 + 0.3 * math.cos(math.pi * (s % 500) / 500)) * math.exp(r.gauss(0, 0.1))
    ),
    "first batch of each epoch is harder": _map(
        lambda r, s: (1.4 if s % 50 == 0 else 1.0) * math.exp(r.gauss(0, 0.08))
    ),
    "periodic over an epoch": _map(lambda r, s: 1.5 + math.sin(2 * math.pi * s / 100) + r.gauss(0, 0.1)),
    "tiny and almost constant": _map(lambda r, s: 1e-9 * (1 + 1e-3 * r.gauss(0, 1))),
    "exactly constant": _map(lambda r, s: 0.6931471824645996),
    "negative (an ELBO)": _map(lambda r, s: -150.0 - s / 20 + r.gauss(0, 8)),
    "through zero": _map(lambda r, s: 1.0 - s / 700 + r.gauss(0, 0.1)),
    "mostly zero (hinge)": _map(lambda r, s: max(0.0, r.gauss(-0.5, 0.5))),
    "plateau then descent": _map(
        lambda r, s: (4.6 if s < 900 else 0.8 + 3.8 * math.exp(-(s - 900) / 60)) * math.exp(r.gauss(0, 0.03))
    ),
}
