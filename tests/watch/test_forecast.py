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
from stayfinite.watch import forecast


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
    assert outlooks(lambda step: 1.02**step, steps)[0].step == 426


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
