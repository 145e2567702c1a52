"""A mesh of 2 x 2, `fully_shard` over tensor parallelism: the same bits, right norms, one decision, one collective."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from guard.mesh_ranks import BAD_RANKS, BAD_STEP, STEPS
from guard.rank_reports import Reports, reports_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs the gloo backend"),
]
SCRIPT = Path(__file__).with_name("mesh_ranks.py")
TASKS = ["shard plain", "shard step", "shard watch", "shard input step", "shard input watch", "shard count"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What four ranks say of every task, from one set of processes."""
    folder = tmp_path_factory.mktemp("mesh")
    return reports_of(SCRIPT, [(rank, folder) for rank in range(4)], TASKS)


@pytest.mark.parametrize("way", ["shard step", "shard watch"])
def test_a_healthy_run_has_the_same_bits_and_its_norms_are_right(reports: Reports, way: str) -> None:
    for plain, guarded in zip(reports["shard plain"], reports[way], strict=True):
        assert guarded["weights"] == plain["weights"]
        assert guarded["actions"] == ["none"] * STEPS and not guarded["incidents"]
        assert guarded["norms"] == pytest.approx(plain["norms"], rel=1e-5)  # in float64, by one process


@pytest.mark.parametrize("way", ["shard input step", "shard input watch"])
def test_a_bad_batch_of_one_replica_is_refused_by_all_four(reports: Reports, way: str) -> None:
    of_ranks = reports[way]
    assert len({report["weights"] for report in of_ranks}) == 1
    for report in of_ranks:
        assert report["skipped"] == 1
        assert [step for step, action in enumerate(report["actions"]) if action == "skip"] == [BAD_STEP]
    (incident,) = of_ranks[0]["incidents"]
    assert incident["rank"] in BAD_RANKS and incident["world_size"] == 4 and incident["step"] == BAD_STEP
    assert incident["findings"][0]["code"] == "DAT001"


def test_a_step_costs_one_collective_of_at_most_64_bytes(reports: Reports) -> None:
    for counts in reports["shard count"]:
        plain, _ = counts["plain"]
        for way in ("step", "watch"):
            collectives, given = counts[way]
            assert collectives == plain + 1 and len(given) == 1 and given[0] <= 64, counts
