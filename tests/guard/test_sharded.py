"""Two ranks with sharded state (fully_shard) or uneven inputs (join): guarded, healthy and not, without a hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from guard.rank_reports import Reports, reports_of
from guard.sharded_ranks import BAD_RANK, BAD_STEP

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs the gloo backend")
SCRIPT = Path(__file__).with_name("sharded_ranks.py")
TRAININGS = [
    f"{parallel} {how}"
    for parallel, faults in (("shard", ["nan"]), ("join", ["nan", "late"]))
    for how in (
        "plain",
        "step",
        "watch",
        *(f"{way} {fault}" for way in ("step", "watch") for fault in faults),
    )
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Both ranks' reports of every training, from one pair of processes."""
    folder = tmp_path_factory.mktemp("sharded")
    return reports_of(SCRIPT, [(0, folder), (1, folder)], TRAININGS)


@pytest.mark.parametrize("parallel", ["shard", "join"])
@pytest.mark.parametrize("how", ["step", "watch"])
def test_a_healthy_run_has_the_bits_of_an_unguarded_one(reports: Any, parallel: str, how: str) -> None:
    plain, guarded = reports[f"{parallel} plain"], reports[f"{parallel} {how}"]
    assert [report["weights"] for report in guarded] == [report["weights"] for report in plain]
    assert [report["skipped"] for report in guarded] == [0, 0]


@pytest.mark.parametrize("how", ["step", "watch"])
def test_a_bad_batch_of_one_rank_is_refused_by_both_and_named_by_rank_0(reports: Any, how: str) -> None:
    zero, one = reports[f"shard {how} nan"]
    assert zero["finite"] and one["finite"]  # the layer that is not sharded is each rank's own
    assert [zero["skipped"], one["skipped"]] == [1, 1]
    incident = zero["incident"]
    assert (incident["step"], incident["rank"], incident["world_size"]) == (BAD_STEP, BAD_RANK, 2)
    assert incident["findings"][0]["code"] == "DAT001" and incident["birth"]["samples"] == [2]


@pytest.mark.parametrize("how", ["step", "watch"])
def test_ranks_with_uneven_inputs_neither_hang_nor_part(reports: Any, how: str) -> None:
    zero, one = reports[f"join {how} nan"]
    assert zero["weights"] == one["weights"] and zero["finite"]
    assert [zero["skipped"], one["skipped"]] == [1, 1]
    zero, one = reports[f"join {how} late"]  # the other rank has run out of batches by then
    assert zero["weights"] == one["weights"] and zero["finite"]
    assert [zero["skipped"], one["skipped"]] == [0, 1]


def test_shards_and_replicas_are_saved(reports: Any) -> None:
    assert not any("not_saved" in report for report in reports["shard step"] + reports["join step"])
