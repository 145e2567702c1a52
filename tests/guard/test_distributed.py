"""Two ranks with DDP: what one rank sees, both act on; they stay equal and go on together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from guard.rank_reports import Reports, reports_of
from guard.two_ranks import BAD_STEP, STEPS

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs the gloo backend")
SCRIPT = Path(__file__).with_name("two_ranks.py")


SCENARIOS = [
    "loss",
    "loss watch",
    "input",
    "moment",
    "moment watch",
    "uneven watch",
    "uneven loss watch",
    "component",
    "foreign component",
    "zero loss",
    "zero moment",
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Both ranks' reports of every scenario, from one pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    return reports_of(SCRIPT, [(0, folder), (1, folder)], SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_ranks_act_alike_stay_equal_and_go_on(reports: dict[str, Any], scenario: str) -> None:
    zero, one = reports[scenario]
    assert zero["actions"] == one["actions"] and len(zero["actions"]) == STEPS
    assert zero["weights"] == one["weights"] and zero["moments"] == one["moments"]
    assert zero["bad_state"] == one["bad_state"] == []
    assert zero["stopped"] is None and one["stopped"] is None
    assert zero["actions"][-3:] == ["none"] * 3
    assert zero["losses"][0] != one["losses"][0], "each rank records its own loss"


@pytest.mark.parametrize("scenario", ["loss", "loss watch", "input", "zero loss"])
def test_what_one_rank_saw_both_refuse_and_both_name_it(reports: dict[str, Any], scenario: str) -> None:
    for report in reports[scenario]:
        assert [step for step, action in enumerate(report["actions"]) if action != "none"] == [BAD_STEP]
        assert report["actions"][BAD_STEP] == "skip"
        assert report["said"][0].startswith("the loss is nan on rank 1")


@pytest.mark.parametrize("scenario", ["moment", "moment watch", "zero moment"])
def test_state_gone_bad_on_one_rank_is_put_back_on_both(reports: dict[str, Any], scenario: str) -> None:
    """A moment alone is put back before the step; once it has reached the weights, all of the state is."""
    event = "rollback" if "watch" in scenario else "repair"
    for report in reports[scenario]:
        assert report["events"].count(event) == 1
        assert report["actions"].count("rollback") == ("watch" in scenario)


def test_ranks_that_observe_and_count_differently_go_on_together(reports: dict[str, Any]) -> None:
    """Rows of different lengths would end the run with an error (gloo) or hang it (nccl)."""
    assert reports["uneven watch"][0]["actions"] == ["none"] * STEPS
    refused = [report["actions"][BAD_STEP] for report in reports["uneven loss watch"]]
    assert refused == ["skip", "skip"]


def test_a_component_bad_on_one_rank_is_left_out_by_both(reports: dict[str, Any]) -> None:
    for report in reports["component"]:
        assert report["left_out"] == 1 and report["actions"] == ["none"] * STEPS
        assert "component extra" in report["told"][0]


def test_a_component_only_one_rank_has_is_named_by_both_and_left_out_by_none(reports: dict[str, Any]) -> None:
    for report in reports["foreign component"]:
        assert report["left_out"] == 0 and report["actions"][BAD_STEP] == "skip"
        assert "component extra" in report["said"][0]


@pytest.mark.long
def test_ranks_that_start_a_minute_apart_wait_for_each_other(tmp_path: Path) -> None:
    """The one that is there first waits for the other to make its guard; then both act alike."""
    told = reports_of(SCRIPT, [(0, tmp_path), (1, tmp_path)], ["late loss", "late loss watch"])
    for zero, one in told.values():
        assert zero["actions"] == one["actions"] and zero["actions"][BAD_STEP] == "skip"
        assert zero["weights"] == one["weights"] and zero["bad_state"] == one["bad_state"] == []
        assert zero["said"][0].startswith("the loss is nan on rank 1")
        assert "warning" not in zero["events"] + one["events"]
