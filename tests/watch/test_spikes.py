"""The spike detector: quiet on healthy noise of every kind, awake from step 30 on, never poisoned."""

from __future__ import annotations

import math
import random

import pytest

from stayfinite.watch.spikes import WARM_UP, WINDOW, SpikeState, forget, judge, update
from watch.healthy_series import HEALTHY

LOSS, NORM = 1.5, 4.0
"""The factors the watcher uses for the loss and for the gradient norm."""
NO_SCALE = ("negative (an ELBO)", "through zero", "mostly zero (hinge)")
"""Here a thousand times the largest value means nothing, or the typical value is zero."""


def alarms(values: list[float], factor: float) -> list[int]:
    """The steps at which the detector alarms over a whole series."""
    state, found = SpikeState(factor), []
    for step, value in enumerate(values):
        state, spike = update(state, value)
        if spike is not None:
            found.append(step)
    return found


@pytest.mark.parametrize("kind", HEALTHY)
def test_quiet_on_healthy_noise(kind: str) -> None:
    """A step is refused only if loss and gradient norm alarm together; each alone must be all but silent."""
    for seed in range(5):
        assert alarms(HEALTHY[kind](random.Random(f"{kind}{seed}")), NORM) == []
        loss_alarms = alarms(HEALTHY[kind](random.Random(f"{kind}{seed}")), LOSS)
        assert len(loss_alarms) <= 1, loss_alarms


@pytest.mark.parametrize("kind", [kind for kind in HEALTHY if kind not in NO_SCALE])
@pytest.mark.parametrize("at", [30, 150, 1500])
def test_a_thousandfold_jump_is_seen(kind: str, at: int) -> None:
    for seed in range(3):
        values = HEALTHY[kind](random.Random(seed))[: at + 1]
        values[at] = 1000 * max(*values[:at], 1e-12)
        assert at in alarms(values, NORM)
        assert at in alarms(values, LOSS)


@pytest.mark.parametrize("kind", ["gaussian", "decaying", "power law", "tiny and almost constant"])
def test_a_jump_to_ten_times_is_seen_where_the_run_is_quiet(kind: str) -> None:
    values = HEALTHY[kind](random.Random(1))[:300]
    values[299] *= 10
    assert 299 in alarms(values, LOSS)


def test_a_run_that_has_just_learned_much_still_sees_a_jump() -> None:
    """The loss fell a thousandfold within the window: a jump to a thousand times its start must not pass."""
    values = [2.0 * math.exp(-step / 8) for step in range(60)]
    assert alarms([*values, 2000.0], LOSS) == alarms([*values, 2000.0], NORM) == [60]
    assert alarms([*values, 2.0], NORM) == [], "back at the start is no spike yet"


def test_negative_losses_jump_too() -> None:
    values = HEALTHY["negative (an ELBO)"](random.Random(2))[:200]
    values.append(4000.0)
    assert alarms(values, LOSS) == [200]


def test_zeros_give_no_scale_to_measure_a_jump_by() -> None:
    """A hinge or triplet loss that is satisfied for a while is 0; the first sample that is not is no spike."""
    assert judge(SpikeState(NORM, (0.0,) * WINDOW), 0.3) is None
    assert judge(SpikeState(NORM, (0.0,) * 100 + (1e-3,) * 20), 0.3) is None
    assert judge(SpikeState(NORM, (0.0,) * 60 + (0.2, 0.3, 0.4) * 20), 300.0) is not None


def test_before_the_warm_up_nothing_is_said() -> None:
    assert judge(SpikeState(LOSS, (1.0,) * (WARM_UP - 1)), 1e9) is None
    assert judge(SpikeState(LOSS, (1.0,) * WARM_UP), 1e9) is not None
    assert WARM_UP < 30


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_enters(bad: float) -> None:
    state = SpikeState(LOSS, (1.0, 1.1, 0.9) * 20)
    after, spike = update(state, bad)
    assert after is state and spike is None
    assert judge(state, bad) is None


def test_an_alarm_does_not_become_normal() -> None:
    state = SpikeState(LOSS, (1.0, 1.1, 0.9) * 20)
    for _ in range(50):
        state, spike = update(state, 500.0)
        assert spike is not None and spike.value == 500.0 and spike.typical == 1.0 and spike.deviations > 10
    assert max(state.values) == 1.1


def test_memory_is_bounded_and_forgetting_keeps_the_factor() -> None:
    state = SpikeState(LOSS)
    for step in range(1000):
        state, _ = update(state, 1.0 + step % 7)
    assert len(state.values) == WINDOW
    assert forget(state) == SpikeState(LOSS)


def test_a_fall_is_no_spike() -> None:
    assert judge(SpikeState(LOSS, (100.0, 101.0, 99.0) * 20), 1e-6) is None


def test_huge_and_tiny_numbers_do_not_overflow_the_statistics() -> None:
    for scale in (1e-300, 1e-30, 1e30, 1e300):
        values = tuple(scale * (1 + 0.1 * (i % 5)) for i in range(60))
        assert judge(SpikeState(LOSS, values), scale * 1e5) is not None
        assert judge(SpikeState(LOSS, values), scale * 1.5) is None
        assert judge(SpikeState(LOSS, tuple(-v for v in values)), scale) is not None or scale >= 1e300
