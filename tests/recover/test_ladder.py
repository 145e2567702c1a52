"""The recovery ladder, as pure counts: each rung when it is due, each bounded, nothing uncounted."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfinite.recover.ladder import Counters, Ladder
from stayfinite.recover.policy import Policy


def climb(policy: Policy, failures: int, *, state_is_bad: bool = False) -> list[str]:
    """The actions of that many failures in a row, done as they say."""
    ladder, actions = Ladder(policy), []
    for _ in range(failures):
        action = ladder.failure(state_is_bad=state_is_bad, is_spike=False)
        actions.append(action)
        ladder.lowered += action == "lower-lr"
        ladder.counters.rollbacks += action == "rollback"
    return actions


def test_the_default_ladder() -> None:
    assert climb(Policy(), 10) == [
        "skip", "skip", "skip", "lower-lr", "skip", "skip", "rollback", "skip", "skip", "stop",
    ]  # fmt: skip


def test_the_presets() -> None:
    assert climb(Policy.named("stop"), 1) == ["stop"]
    assert climb(Policy.named("skip"), 10) == ["skip"] * 9 + ["stop"]
    assert Policy.named("default") == Policy()


@pytest.mark.parametrize("name", ["Default", "", "rollback", None, 3])
def test_an_unknown_preset_is_named_with_the_known_ones(name: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown policy .*'default', 'skip' or 'stop'.*Policy\("):
        Policy.named(name)


def test_bad_state_cannot_be_skipped() -> None:
    assert climb(Policy(), 5, state_is_bad=True) == ["rollback"] * 3 + ["stop"] * 2
    assert climb(Policy(rollback_after=None), 2, state_is_bad=True) == ["rollback"] * 2


def test_what_was_foretold_goes_back_at_once_and_else_nothing_changes() -> None:
    policy = Policy()
    assert policy.decide(2, 0, 0, state_is_bad=False, was_foretold=True) == "rollback"
    assert policy.decide(10, 0, 0, state_is_bad=False, was_foretold=True) == "stop"
    for no_way_back in (Policy(rollback_after=None), Policy(foresee="warn"), Policy(max_rollbacks=0)):
        ladder = Ladder(no_way_back)
        actions = [ladder.failure(state_is_bad=False, is_spike=False, was_foretold=True) for _ in range(4)]
        assert actions == ["skip", "skip", "skip", "lower-lr"]


def test_early_ways_back_take_nothing_from_those_of_the_ladder() -> None:
    """As in the plate reader with seed 8: three early ones, then a state with which every batch fails."""
    ladder = Ladder(Policy())

    def fail(*, was_foretold: bool) -> str:
        action = ladder.failure(state_is_bad=False, is_spike=False, was_foretold=was_foretold)
        if action == "rollback":
            ladder.counters.rollbacks += 1
            early = was_foretold and ladder.may_go_back_early
            ladder.counters.foretold += early
            ladder.lowered += 0.5 if early else 1
        ladder.lowered += action == "lower-lr"
        return action

    for _ in range(3):
        assert fail(was_foretold=True) == "rollback"
        ladder.success()
    assert not ladder.may_go_back_early
    assert [fail(was_foretold=True) for _ in range(8)] == [
        "skip", "skip", "skip", "lower-lr", "skip", "skip", "rollback", "skip",
    ]  # fmt: skip
    assert ladder.counters.rollbacks == 4 and ladder.lowered == 3.5


@given(st.lists(st.sampled_from(["good", "bad", "foretold"]), max_size=300))
def test_every_course_ends_within_its_budgets(course: list[str]) -> None:
    ladder, policy = Ladder(Policy(min_applied=0)), Policy()
    for what in course:
        if what == "good":
            ladder.success()
            continue
        action = ladder.failure(state_is_bad=False, is_spike=False, was_foretold=what == "foretold")
        if action == "rollback":
            ladder.counters.foretold += what == "foretold" and ladder.may_go_back_early
            ladder.counters.rollbacks += 1
        if action == "stop":
            break
    foretold = ladder.counters.foretold
    assert foretold <= policy.max_rollbacks
    assert ladder.counters.rollbacks - foretold <= policy.max_rollbacks


def test_a_rung_can_be_left_out() -> None:
    assert "lower-lr" not in climb(Policy(lower_lr_after=None), 10)
    assert "rollback" not in climb(Policy(rollback_after=None), 10)


def test_the_rungs_are_bounded_over_the_whole_run() -> None:
    ladder = Ladder(Policy())
    for _ in range(6):
        for _ in range(5):
            ladder.lowered += ladder.failure(state_is_bad=False, is_spike=False) == "lower-lr"
        ladder.success()
    assert ladder.lowered == 3
    ladder.counters.rollbacks = 3
    actions = [ladder.failure(state_is_bad=False, is_spike=False) for _ in range(7)]
    assert actions[-1] == "stop" and "3 rollbacks" in ladder.reason_to_stop()


def test_a_success_leads_back_to_the_ground() -> None:
    ladder = Ladder(Policy())
    for _ in range(40):
        assert ladder.failure(state_is_bad=False, is_spike=False) == "skip"
        ladder.success()
    assert ladder.failures_in_a_row == 0


def test_too_few_applied_updates_end_the_run_although_no_ten_fail_in_a_row() -> None:
    ladder = Ladder(Policy(min_applied=0.5, min_applied_window=20))
    actions: list[str] = []
    for _ in range(20):
        ladder.success()
        actions += [ladder.failure(state_is_bad=False, is_spike=False) for _ in range(2)]
        if actions[-1] == "stop":
            break
    assert actions[-1] == "stop" and ladder.counters.steps >= 20
    assert "less than 50% of the last 20 steps" in ladder.reason_to_stop()


def test_the_scalers_own_backoff_is_no_failure() -> None:
    ladder = Ladder(Policy(min_applied_window=10))
    for _ in range(50):
        ladder.backoff()
    assert ladder.failure(state_is_bad=False, is_spike=False) == "skip"
    assert (ladder.counters.backoffs, ladder.counters.skipped, ladder.counters.steps) == (50, 1, 51)


def test_spikes_are_counted_apart() -> None:
    ladder = Ladder(Policy())
    for spike in (True, True, False, True):
        ladder.failure(state_is_bad=False, is_spike=spike)
    assert ladder.counters.spikes == 3 and ladder.spikes_in_a_row == 1
    ladder.success()
    assert ladder.spikes_in_a_row == 0


def test_the_reasons() -> None:
    first = Ladder(Policy.named("stop"))
    first.failure(state_is_bad=False, is_spike=False)
    assert first.reason_to_stop() == "stopped at the first failure"
    tenth = Ladder(Policy())
    for _ in range(10):
        tenth.failure(state_is_bad=False, is_spike=False)
    assert tenth.reason_to_stop() == "stopped at 10 failures in a row"
    together, by_turns = Ladder(Policy()), Ladder(Policy())
    for _ in range(10):
        together.failure((1, 2), state_is_bad=False, is_spike=False)
        for one in (1, 2):
            by_turns.failure((one,), state_is_bad=False, is_spike=False)
    assert together.reason_to_stop() == "stopped at 10 failures in a row"
    assert by_turns.reason_to_stop() == "stopped at 10 failures in a row of one optimizer"


def test_updates_of_another_optimizer_between_the_failures_of_one() -> None:
    """A critic that can never be updated, and a policy that is, every other step."""
    ladder = Ladder(Policy())
    for step in range(10):
        ladder.failure((1,), state_is_bad=False, is_spike=False)
        if step % 2:
            ladder.success((2,))
    assert ladder.reason_to_stop() == "stopped at 10 failures in a row of one optimizer"
    assert ladder.is_stuck
    begun = Ladder(Policy())
    begun.success((1,))
    for _ in range(10):
        begun.failure((1,), state_is_bad=False, is_spike=False)
    assert begun.reason_to_stop() == "stopped at 10 failures in a row" and not begun.is_stuck


@settings(derandomize=True, max_examples=60, deadline=None, database=None)
@given(st.lists(st.sampled_from(["good", "bad", "spike", "poisoned", "backoff"]), max_size=300))
def test_every_step_is_in_exactly_one_counter(events: list[str]) -> None:
    ladder = Ladder(Policy())
    for event in events:
        if event == "good":
            ladder.success()
        elif event == "backoff":
            ladder.backoff()
        else:
            ladder.failure(state_is_bad=event == "poisoned", is_spike=event == "spike")
    counts = ladder.counters
    assert counts.steps == len(events) == counts.applied + counts.skipped + counts.backoffs
    assert 0.0 <= counts.success_rate <= 1.0
    assert counts.spikes == events.count("spike")


def test_success_is_applied_and_kept() -> None:
    counters = Counters()
    assert counters.success_rate == 1.0
    counters.load({"steps": 100, "applied": 90, "rolled_back": 40, "unknown": 5})
    assert counters.success_rate == 0.5
    again = Counters()
    again.load(counters.to_dict())
    assert again == counters


@pytest.mark.parametrize(
    "wrong",
    [
        {"lower_lr_by": 0.0}, {"lower_lr_by": 1.0}, {"lower_lr_by": math.nan}, {"stop_after": 0},
        {"min_applied": 1.5}, {"min_applied": math.nan}, {"min_applied_window": 0}, {"scale_floor": 0.0},
        {"scale_floor": math.nan}, {"spikes": "stop"}, {"scheduler_on_skip": "wait"}, {"rng_on_skip": ""},
    ],
    ids=str,
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"Policy\({next(iter(wrong))}="):
        Policy(**wrong)
