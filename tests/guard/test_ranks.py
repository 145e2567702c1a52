"""Checkpoints, drift and collectives of several ranks, by real processes (gloo, this host)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.distributed as dist

import preloaded
from guard.rank_reports import Reports, reports_of

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs the gloo backend")
SCRIPT = Path(__file__).with_name("rank_tasks.py")
BENCH = Path(__file__).parents[2] / "bench"
TASKS = [
    *("ddp save", "ddp resume", "shard save", "shard resume", "ddp own", "ddp bad", "shard bad", "ddp alone"),
    *("ddp drift", "plain drift", "ddp count", "shard count", "shard count clip", "apart"),
]


def reports_on(ranks: int, folder: Path, tasks: list[str]) -> Reports:
    return reports_of(SCRIPT, [(rank, ranks, folder) for rank in range(ranks)], tasks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def reports(folder: Path) -> Reports:
    return reports_on(2, folder, TASKS)


@pytest.mark.parametrize("parallel", ["ddp", "shard"])
def test_a_resumed_run_ends_in_the_same_bits(reports: Reports, parallel: str) -> None:
    """Dropout differs by rank: random states are each rank's own, though one file holds them."""
    saved, resumed = reports[f"{parallel} save"], reports[f"{parallel} resume"]
    assert [one["restored"] for one in resumed] == [one["saved"] for one in saved]
    assert [one["weights"] for one in resumed] == [one["weights"] for one in saved]


def test_one_file_one_folder_and_nothing_beside_them(reports: Reports, folder: Path) -> None:
    assert reports["shard save"]
    names = {path.name for path in folder.iterdir() if not path.name.startswith(("run ", "stor", "stay"))}
    assert names == {"replicas.pt", "shards", "own-0.pt", "own-1.pt", "alone.pt"}
    assert {"stayfinite.pt", ".metadata"} < {path.name for path in (folder / "shards").iterdir()}


def test_what_is_bad_on_one_rank_is_saved_by_none(reports: Reports) -> None:
    for report in reports["ddp bad"]:
        assert "on rank 1 module.0.weight is not finite" in report["refused"]
    for report in reports["shard bad"]:
        assert "is not finite" in report["refused"]


def test_shards_are_cut_anew_for_another_number_of_ranks(reports: Reports, folder: Path) -> None:
    saved = reports["shard save"][0]["saved"]
    (alone,) = reports_on(1, folder, ["shard resume"])["shard resume"]
    assert alone["restored"] == saved


@pytest.mark.long
def test_shards_and_replicas_on_three_ranks(reports: Reports, folder: Path) -> None:
    for task, told in reports_on(3, folder, ["shard resume", "ddp resume"]).items():
        assert {one["restored"] for one in told} == {reports[task.replace("resume", "save")][0]["saved"]}
        assert len({one["weights"] for one in told}) == 1


def test_a_damaged_shard_is_found_before_anything_is_loaded(
    reports: Reports, folder: Path, tmp_path: Path
) -> None:
    import torch
    from torch import nn

    from stayfinite import Guard
    from stayfinite.recover import CheckpointError

    assert reports["shard save"]
    shutil.copytree(folder / "shards", tmp_path / "shards")
    shard = tmp_path / "shards" / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    model = nn.Sequential(nn.Linear(6, 10), nn.Dropout(0.2), nn.ReLU(), nn.Linear(10, 3))
    before = [p.detach().clone() for p in model.parameters()]
    guard = Guard(model, torch.optim.AdamW(model.parameters()), run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(CheckpointError, match="damaged"):
        guard.restore(tmp_path / "shards")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("parallel", ["ddp", "plain"])
def test_drift(reports: Reports, parallel: str) -> None:
    """One bit of one weight on rank 1. Ranks that average nothing are no replicas, and nothing is said of them."""
    incidents = reports[f"{parallel} drift"][0]["incidents"]
    if parallel == "plain":
        assert incidents == []
        return
    (incident,) = incidents
    assert incident["findings"][0]["code"] == "DST001" and incident["rank"] == 1 and incident["step"] == 6


def test_ranks_that_come_late_and_average_nothing_have_one_folder_and_the_bad_gradient_by_name(
    reports: Reports,
) -> None:
    for report in reports["apart"]:
        (said,) = report["said"]
        assert said == "the gradient is not finite on rank 1: 0.weight, 0.bias, 3.weight and 1 more"
        assert len(report["folders"]) == 1
        incident = report["incident"]
        codes = [finding["code"] for finding in incident["findings"]]
        assert incident["rank"] == 1 and "made.sum()" in incident["birth"]["source"] and "RUN020" not in codes


@pytest.mark.parametrize("task", ["ddp count", "shard count", "shard count clip"])
def test_a_step_costs_one_collective_of_at_most_64_bytes(reports: Reports, task: str) -> None:
    for counts in reports[task]:
        plain, _ = counts["plain"]
        for way in ("watch",) if "clip" in task else ("step", "watch"):
            collectives, given = counts[way]
            assert collectives == plain + 1 and len(given) == 1 and given[0] <= 64, counts


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([10000, 0, 3], id="some"),
        pytest.param([*range(1, 21), 10001, 10002], id="more", marks=pytest.mark.long),
    ],
)
def test_random_schedules(tmp_path: Path, numbers: Sequence[int]) -> None:
    """A sample of bench/ranks_campaign.py."""
    given = ["--seed", "7", "--ranks", "2", "--only", *map(str, numbers)]
    command = [sys.executable, str(BENCH / "ranks_campaign.py"), *given]
    done = preloaded.run(command, timeout=600, cwd=tmp_path)
    ended = f"{len(numbers)} schedules ended, 0 failed"
    assert done.returncode == 0 and ended in done.stdout, done.stdout + done.stderr


@pytest.mark.long  # killing a rank: tests/launch/test_ranks.py; going on from a checkpoint: below
def test_a_killed_rank_and_a_restart(tmp_path: Path) -> None:
    """Of bench/ranks_kill.py."""
    command = [sys.executable, str(BENCH / "ranks_kill.py"), "--times", "1", "--seed", "2", "--ranks", "2"]
    done = preloaded.run(command, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
