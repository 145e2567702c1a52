"""The last good copy of replicas is kept by rank 0 alone, and all ranks get the same bits back from it (gloo)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from guard.rank_reports import Reports, reports_of

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs the gloo backend")
SCRIPT = Path(__file__).with_name("copied_once.py")
TASKS = {
    2: [
        "weight",
        "moment",
        "replaced",
        "drift",
        "breaks off 0",
        "breaks off 1",
        "join",
        "last",
        "stop",
        "ladder",
    ],
    3: ["weight", "moment", "ladder"],
}
BUFFERS = 4 * 7 + 4 * 10 + 4 * 10 + 8
"""Bytes of what is a rank's own: a buffer, and the running mean, variance and count of a batch norm."""


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.long)])
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What every rank says of every task, from one set of processes."""
    ranks, folder = request.param, tmp_path_factory.mktemp("copied")
    return reports_of(SCRIPT, [(rank, ranks, folder) for rank in range(ranks)], TASKS[ranks])


def of(reports: Reports, task: str) -> list[dict[str, Any]]:
    if task not in reports:
        pytest.skip("not with so many ranks")
    return reports[task]


def test_other_ranks_hold_only_what_is_their_own(reports: Reports) -> None:
    first, *others = of(reports, "weight")
    assert first["held"] == first["state"]
    assert [other["held"] for other in others] == [BUFFERS] * len(others)
    assert all(other["state"] == first["state"] for other in others)


def test_a_bad_weight_brings_the_bits_of_the_copy_back_on_all_ranks(reports: Reports) -> None:
    told = of(reports, "weight")
    for report in told:
        assert report["seen"]["6"] == report["seen"]["4"], "the copy was made before step 4"
        assert report["rates"] == [0.005] and report["copied_at"] == 4
    assert len({report["seen"]["6"] for report in told}) == len(told), "buffers are each rank's own"
    assert len({report["weights"] for report in told}) == 1


def test_a_ladder_goes_back_on_all_ranks(reports: Reports) -> None:
    told = of(reports, "ladder")
    for report in told:
        assert [event for event, _ in report["events"]] == ["lower-lr", "rollback"]
        assert report["seen"]["8"] == report["seen"]["4"]
    assert len({report["weights"] for report in told}) == 1


def test_a_bad_moment_is_put_back_alone(reports: Reports) -> None:
    """With it all that belongs to its parameter: four updates when the copy was made, and one since."""
    told = of(reports, "moment")
    for report in told:
        assert [event for event, _ in report["events"]] == ["repair"]
        assert report["updates"] == 5 and report["seen"]["6"] not in list(report["seen"].values())[:-1]
    assert len({report["weights"] for report in told}) == 1


def test_a_moment_that_the_script_has_replaced_on_one_rank(reports: Reports) -> None:
    """It cannot be put back alone; once it has reached the weights, everything is, on all ranks."""
    told = of(reports, "replaced")
    for report in told:
        assert [event for event, _ in report["events"]] == ["repair", "drift", "rollback"]
        assert "could not be repaired" in report["events"][0][1]
        assert report["seen"]["7"] == report["seen"]["4"]
    assert len({report["weights"] for report in told}) == 1


def test_weights_that_are_not_alike_are_kept_by_every_rank(reports: Reports) -> None:
    told = of(reports, "drift")
    for report in told:
        assert report["held"] == report["state"] and report["copied_at"] == 8
        assert report["seen"]["10"] == report["seen"]["8"]
    assert told[0]["weights"] != told[1]["weights"]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_update_that_breaks_off_on_one_rank_waits_for_nobody(reports: Reports, rank: int) -> None:
    report = of(reports, f"breaks off {rank}")[rank]
    (event, what), *_ = report["events"]
    if rank == 0:
        assert event == "rollback" and "the state is that of step 4 again" in what
    else:
        assert event == "warning" and "the last good copy is with rank 0" in what
        assert any(report["changed"]) and not all(report["changed"]), "it did break off in the middle"


def test_under_join_every_rank_has_a_copy_of_its_own(reports: Reports) -> None:
    for report in of(reports, "join"):
        (event, what), *_ = report["events"]
        assert event == "rollback" and "back to the state of step 6" in what
        assert report["seen"]["7"] == report["seen"]["6"] and report["held"] == report["state"]


def test_the_end_of_a_run_is_each_rank_s_own(reports: Reports) -> None:
    """Rank 0, which writes checkpoints, goes back; others say whose the copy is."""
    zero, one = of(reports, "last")
    assert zero["events"][0][0] == "rollback"
    assert (
        one["events"][0][0] == "warning"
        and "the copy to repair it from is with rank 0" in one["events"][0][1]
    )


def test_a_run_that_stops_saves_the_copy(reports: Reports) -> None:
    for report in of(reports, "stop"):
        assert report["checkpoint"] is not None and report["digest"] == report["seen"]["4"]
