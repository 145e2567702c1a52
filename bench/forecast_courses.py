"""The detector of forecasts on made courses of one float16 output: growth to its limit, or short of it.

    python bench/forecast_courses.py

Samples are taken as the schedule says; a sample costs 0.05, 0.3 or 1 step. Growth sets in at step 0 to 1,500, and
single batches differ by 2 to 35 %. Pure: nothing is trained.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from stayfinite.findings.subjects.outlook import FLOAT16_LIMIT, ModuleVital, VitalSample
from stayfinite.watch.course import Course
from stayfinite.watch.vitals.schedule import Schedule

END = math.log(FLOAT16_LIMIT)
Level = Callable[[int], float]


def outlook_of(level: Level, steps: int, noise: float, cost: float, seed: int) -> tuple[int | None, int]:
    """The step of the first forecast, and the step at which the run is at its limit or over."""
    chance, course, schedule, told = random.Random(seed), Course(), Schedule(), None
    for step in range(steps):
        size = math.exp(min(700, level(step) + chance.gauss(0, noise)))
        if schedule.wants(step):
            vital = ModuleVital(size, size / 3, 2.0, "Block", FLOAT16_LIMIT)
            outlook = course.add(VitalSample(step, {"block": vital}))
            schedule.sampled(step, cost)
            schedule.urgent = course.is_urgent
            schedule.look_again(step, course.steps_left(step))
            told = step if told is None and outlook is not None else told
        schedule.lived(1.0)
        if size >= FLOAT16_LIMIT:
            return told, step
    return told, steps


def growth(takes: int, begins: int) -> Level:
    first = math.log(3.0)
    return lambda step: first + max(0, step - begins) * (END - first) / takes


def short_of_it(chance: random.Random) -> Iterator[tuple[str, Level, int]]:
    begins, takes = chance.choice([0, 0, 50, 300, 1500]), chance.choice([20, 50, 100, 300, 1000])
    share, low = chance.uniform(0.2, 0.85), chance.uniform(-2, 2)
    top, power = low + share * (END - low), chance.choice([1, 2, 3])
    rises, over = math.exp((top - low) / power) - 1, begins + 3 * takes + 200

    def since(step: int) -> float:
        return max(0, step - begins) / takes

    yield "exponential, then level", lambda step: low + min(1, since(step)) * (top - low), over
    yield (
        "logistic",
        lambda step: top - math.log1p(math.exp(min(500, (top - low) * (1 - (step - begins) / takes)))),
        over,
    )
    yield "slower and slower", lambda step: low + (top - low) * (1 - math.exp(-since(step))), over + 2 * takes
    yield "a power of the time", lambda step: min(top, low + power * math.log1p(since(step) * rises)), over
    yield (
        "waves",
        lambda step: low + (top - low) * (0.8 + 0.05 * math.sin(2 * math.pi * step / takes)),
        over + 3 * takes,
    )
    yield "level", lambda step: top, 800


def main() -> None:
    print(
        f"{'growth over':>12} {'a sample costs':>14} {'not foretold':>12} {'under 8 steps':>13} {'median':>6}"
    )
    for takes in (60, 120, 250, 500, 1000):
        for cost in (0.05, 0.3, 1.0):
            ahead = []
            for seed in range(24):
                chance = random.Random(1000 + seed)
                begins, noise = chance.choice([0, 0, 20, 100, 400, 1500]), chance.choice([0.02, 0.1, 0.2])
                told, ends = outlook_of(growth(takes, begins), begins + 3 * takes, noise, cost, seed)
                ahead.append(-1 if told is None else ends - told)
            counts = f"{sum(a < 0 for a in ahead):12} {sum(a < 8 for a in ahead):13} {sorted(ahead)[12]:6}"
            print(f"{takes:12} {cost:14} {counts}", flush=True)
    alarms: dict[str, int] = {}
    for seed in range(200):
        chance = random.Random(seed)
        noise, cost = chance.choice([0.02, 0.1, 0.2, 0.35]), chance.choice([0.05, 0.3, 1.0])
        for name, level, steps in short_of_it(chance):
            alarms[name] = alarms.get(name, 0) + (outlook_of(level, steps, noise, cost, seed)[0] is not None)
    for name, count in alarms.items():
        print(f"{name:24} {count:3} of 200 that end short of the limit were foretold to reach it")


if __name__ == "__main__":
    main()
