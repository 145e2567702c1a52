"""The detector of forecasts, on series whose end is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from stayfinite.findings.subjects.outlook import (
    FLOAT16_LIMIT,
    SQUARED_LIMIT,
    ModuleVital,
    Outlook,
    VitalSample,
)
from stayfinite.rules.run.grows_towards_limit import GrowsTowardsLimit
from stayfinite.watch import forecast
from stayfinite.watch.course import Course
from stayfinite.watch.trend import trend_of
from stayfinite.watch.vitals.schedule import Schedule


def outlooks(
    value: Callable[[int], float], steps: Sequence[int], limit: float = FLOAT16_LIMIT
) -> list[Outlook]:
    state, found = forecast.init(), []
    for step in steps:
        size = value(step)
        if size >= limit:
            break
        state, outlook = forecast.update(
            state, VitalSample(step, {"block": ModuleVital(size, size / 3, 2.0, "Block", limit)})
        )
        found += [outlook] if outlook is not None else []
    return found


@pytest.mark.parametrize("limit", [FLOAT16_LIMIT, SQUARED_LIMIT])
@pytest.mark.parametrize("factor", [1.05, 1.3, 3.0])
def test_steady_growth_is_foretold_with_an_interval_that_holds(factor: float, limit: float) -> None:
    noise = random.Random(0)
    ends = math.ceil(math.log(limit / 5) / math.log(factor))
    values = [5 * factor**step * math.exp(noise.gauss(0, 0.02)) for step in range(ends + 1)]
    first, *_ = outlooks(lambda step: values[step], range(ends), limit)
    left = ends - first.step
    assert left >= min(8, 0.3 * ends)
    assert first.low <= 1.3 * left and first.high >= 0.7 * left
    assert first.factor == pytest.approx(factor, rel=0.15)


@pytest.mark.parametrize("seed", range(20))
def test_growth_that_saturates_is_silent(seed: int) -> None:
    noise = random.Random(seed)
    end, pace = noise.uniform(10, 3000), noise.uniform(2, 80)
    values = [(1 + end * (1 - math.exp(-step / pace))) * math.exp(noise.gauss(0, 0.1)) for step in range(400)]
    assert outlooks(lambda step: values[step], range(400)) == []


def test_growth_that_slowed_down_between_two_samples_is_silent_and_growth_that_went_on_is_not() -> None:
    """As a loaded machine sampled rewards that rise with the square of the time: nothing from step 190 to 426."""
    steps = [
        *range(17),
        *range(18, 33, 2),
        *range(36, 65, 4),
        *range(72, 129, 8),
        144,
        160,
        190,
        426,
        427,
        545,
    ]
    noise = random.Random(0)

    def rising(step: int) -> float:
        return (1 + min(step, 400) ** 2 / 32) * math.exp(noise.gauss(0, 0.05))

    assert outlooks(rising, steps) == []
    assert outlooks(lambda step: 1.02**step, steps)[0].step == 545, "15 steps before its end, not 134"


def test_a_constant_that_a_script_wrote_is_silent_and_a_value_that_moves_there_is_not() -> None:
    assert outlooks(lambda _: 60000.0, range(50)) == []
    assert outlooks(lambda _: 65504.0, range(50)) == []
    scores = random.Random(0)
    assert outlooks(lambda _: 30000 + 16.0 * scores.randint(0, 12), range(200)) == [], (
        "a mask that is added to scores"
    )
    slow = random.Random(1)
    assert outlooks(lambda _: 40000 * math.exp(slow.gauss(0, 0.008)), range(50)), "batches that differ little"
    noise = random.Random(0)
    (only,) = outlooks(lambda _: 40000 * math.exp(noise.gauss(0, 0.05)), range(50))
    assert only.step == 3 and math.isinf(only.high) and only.low >= 1


def test_noise_alone_is_silent() -> None:
    noise = random.Random(0)
    assert outlooks(lambda _: 100 * math.exp(noise.gauss(0, 0.5)), range(2000)) == []


def scaled(scales: Sequence[float]) -> list[Outlook]:
    state, said = forecast.init(), []
    for step, scale in enumerate(scales):
        state, outlook = forecast.update(state, VitalSample(step, scale=scale, scale_floor=1.0, modules={}))
        said += [outlook] if outlook is not None else []
    return said


@pytest.mark.parametrize("held_for", [5, 60])
@pytest.mark.parametrize("looked_for", [0, 3])
def test_a_loss_scale_that_falls_after_it_has_held_is_foretold_before_its_floor(
    looked_for: int, held_for: int
) -> None:
    begin = [2.0 ** (16 - halved) for halved in range(looked_for)]
    held = 2.0 ** (16 - looked_for)
    first, *_ = scaled([*begin, *[held] * held_for, *(held / 2**step for step in range(1, 17 - looked_for))])
    assert first.what == "loss scale" and first.value >= 32 and first.limit == pytest.approx(1.0)
    assert first.first_value == pytest.approx(held)


@pytest.mark.parametrize("settles", range(17))
def test_a_scaler_that_looks_for_its_scale_is_silent(settles: int) -> None:
    """65536 is where torch begins; a summed loss may need 32, and gets there by a skipped step for each halving."""
    way = [2.0 ** (16 - step) for step in range(settles)]
    found = 2.0 ** (16 - settles)
    assert scaled([*way, *[found] * 100]) == []
    assert scaled([*way, 2 * found, 2 * found, *[found] * 100]) == [], "with a pause on the way"


def watched(level: Callable[[int], float], steps: int, cost: float) -> tuple[Outlook | None, float]:
    """A run whose largest float16 output is e to the power of `level`, sampled as the schedule says: its first
    outlook, and the share of its steps that was sampled."""
    course, schedule, sampled = Course(), Schedule(), 0
    for step in range(steps):
        size = math.exp(level(step))
        if schedule.wants(step):
            sampled += 1
            outlook = course.add(
                VitalSample(step, {"block": ModuleVital(size, size / 3, 2.0, "Block", FLOAT16_LIMIT)})
            )
            schedule.sampled(step, cost)
            schedule.urgent = course.is_urgent
            schedule.look_again(step, course.steps_left(step))
            if outlook is not None:
                return outlook, sampled / (step + 1)
        schedule.lived(1.0)
        if size >= FLOAT16_LIMIT:
            break
    return None, sampled / steps


@pytest.mark.parametrize(
    "cost", [0.05, 1.0]
)  # of a sample, in steps: one in 10, or one in 200, can be afforded
@pytest.mark.parametrize("takes", [250, 500, 1000])
@pytest.mark.parametrize("begins", [0, 20, 100, 400, 1500])
def test_long_growth_is_foretold_in_time_whenever_it_sets_in(begins: int, takes: int, cost: float) -> None:
    """Each step of its last part is sampled, so that the window holds 16 steps of it: it has lasted for longer."""
    noise = random.Random(begins + takes)
    first, last = math.log(3.0), math.log(FLOAT16_LIMIT)

    def level(step: int) -> float:
        return first + max(0, step - begins) * (last - first) / takes + noise.gauss(0, 0.05)

    outlook, _ = watched(level, begins + 2 * takes, cost)
    assert outlook is not None
    assert 8 <= begins + takes - outlook.step <= 100


@pytest.mark.parametrize("begins", [100, 300])
def test_growth_that_has_just_begun_is_foretold_however_long_it_was_level_before(begins: int) -> None:
    noise = random.Random(begins)
    outlook, _ = watched(
        lambda step: 1.0 + max(0, step - begins) * 0.1 + noise.gauss(0, 0.05), begins + 200, 0.05
    )
    assert outlook is not None and begins + 100 - outlook.step >= 8


@pytest.mark.parametrize("seed", range(20))
def test_six_samples_that_happen_to_rise_are_no_beginning_where_samples_differ_by_decades(seed: int) -> None:
    """As the states of an agent that has fallen over and goes on falling: 1e7 in one step, 1e13 in another."""
    chance = random.Random(seed)
    before = [(step, chance.uniform(math.log(1e6), math.log(1e14))) for step in range(10)]
    rises = [(10 + i, value) for i, value in enumerate(sorted(chance.uniform(14, 32) for _ in range(6)))]
    trend = trend_of([*before, *rises], math.log(SQUARED_LIMIT), math.log(50.0))
    assert trend is None or not trend.sure
    level = [(step, math.log(1e6) + chance.gauss(0, 0.1)) for step in range(10)]
    begun = trend_of(
        [*level, *((10 + i, math.log(1e6) + i + 1) for i in range(6))], math.log(SQUARED_LIMIT), 4.0
    )
    assert begun is not None and begun.sure


@pytest.mark.parametrize("pace", [20, 100, 500])
@pytest.mark.parametrize("power", [1, 2])
def test_growth_that_goes_half_of_the_way_and_slows_down_is_silent(power: int, pace: int) -> None:
    """Looked at more often as it comes nearer, and not taken for one that goes on."""
    top = 0.6 * math.log(FLOAT16_LIMIT)
    assert watched(lambda step: top * (1 - math.exp(-step / pace)), 6 * pace + 200, 0.05)[0] is None
    rises = math.exp(top / power) - 1
    assert (
        watched(lambda step: min(top, power * math.log1p(step / pace * rises)), 6 * pace + 200, 0.05)[0]
        is None
    )


def test_a_level_run_is_sampled_no_more_often_for_it() -> None:
    noise = random.Random(0)
    assert watched(lambda step: 5 + noise.gauss(0, 0.2), 5000, 1.0)[1] < 0.015


@pytest.mark.parametrize("lowest", [0.001, 3.0])
def test_scores_that_float16_holds_are_followed_to_its_end(lowest: float) -> None:
    state, said = forecast.init(), []
    for step in range(60):
        score = lowest * (FLOAT16_LIMIT / lowest) ** (step / 60)
        state, outlook = forecast.update(state, VitalSample(step, scores={"model.py:9": score}))
        said += [outlook] if outlook is not None else []
    assert said and (said[0].what, said[0].where) == ("attention score", "model.py:9")
    (finding,) = GrowsTowardsLimit().check(said[0])
    assert finding.cause == "FP16_OVERFLOW" and "65504 (where float16 ends)" in finding.message
    assert "the largest score before the softmax in model.py:9" in finding.message
    assert 60 - said[0].step >= 8
    blocks = {f"blocks.{i}": ModuleVital(4.0**i, 4.0**i / 2, 4.0, "Block") for i in range(1, 7)}
    state = forecast.init()
    for step in range(said[0].step + 1):
        score = lowest * (FLOAT16_LIMIT / lowest) ** (step / 60)
        state, outlook = forecast.update(state, VitalSample(step, blocks, scores={"model.py:9": score}))
    assert outlook is not None and outlook.modules == [*blocks, "model.py:9"], "what leads there is named"
    assert forecast.exceeds(VitalSample(60, scores={"model.py:9": math.inf}))
    assert forecast.exceeds(VitalSample(60, scores={"model.py:9": math.nan}))
    assert not forecast.exceeds(VitalSample(60, scores={"model.py:9": -math.inf})), "all is masked"


def test_an_argument_of_exp_is_followed_to_its_limit() -> None:
    state, said = forecast.init(), []
    for step in range(40):
        value = 2 * 1.11**step
        state, outlook = forecast.update(state, VitalSample(step, exponents={"loss.py:3": (value, 88.7228)}))
        said += [outlook] if outlook is not None else []
    assert said and said[0].what == "argument of exp" and said[0].where == "loss.py:3"
    assert 88 / (2 * 1.11 ** said[0].step) > 1.5


def test_amplifiers_are_those_that_carry_the_large_signal() -> None:
    modules = {
        **{f"blocks.{i}": ModuleVital(4.0**i, 4.0**i / 2, 4.0, "Block", FLOAT16_LIMIT) for i in range(1, 7)},
        "norm": ModuleVital(3.0, 1.0, 0.001, "LayerNorm"),
        "small.0": ModuleVital(2.0, 1.0, 9.0, "Linear"),
        "small.1": ModuleVital(2.0, 1.0, 9.0, "Linear"),
    }
    (found,) = forecast.amplifiers(modules)
    assert (found.kind, len(found.names)) == ("Block", 6) and found.gain == pytest.approx(4.0)
    assert str(found) == "x 4 in each of 6 `Block`"
