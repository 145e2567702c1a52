"""Tensor parallelism on two ranks (gloo): the same bits with and without a guard, one decision, the right rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from guard.rank_reports import Reports, reports_of
from guard.tensor_parallel import BAD_STEP, STEPS

pytestmark = [
    pytest.mark.long,  # DTensor is part of `make test` in test_sharded.py
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs the gloo backend"),
]
SCRIPT = Path(__file__).with_name("tensor_parallel.py")
TASKS = ["plain", "step", "watch", "input", "input watch", "weight", "weight watch", "moment"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What both ranks say of every task, from one pair of processes."""
    folder = tmp_path_factory.mktemp("parallel")
    return reports_of(SCRIPT, [(0, folder), (1, folder)], TASKS)


@pytest.mark.parametrize("way", ["step", "watch"])
def test_a_healthy_run_has_the_same_bits_and_its_norms_are_right(reports: Reports, way: str) -> None:
    for plain, guarded in zip(reports["plain"], reports[way], strict=True):
        assert guarded["weights"] == plain["weights"]
        assert guarded["actions"] == ["none"] * STEPS and not guarded["events"] and not guarded["incidents"]
        assert guarded["norms"] == pytest.approx(plain["norms"], rel=1e-5)


@pytest.mark.parametrize("task", ["input", "input watch"])
def test_a_bad_batch_of_one_rank_is_refused_by_both(reports: Reports, task: str) -> None:
    zero, one = reports[task]
    assert zero["actions"] == one["actions"] and zero["weights"] == one["weights"]
    assert [step for step, action in enumerate(zero["actions"]) if action == "skip"] == [BAD_STEP]


@pytest.mark.parametrize("task", ["input", "input watch"])
def test_the_rank_with_the_bad_batch_is_named(reports: Reports, task: str) -> None:
    """Both losses are bad: rank 0 was sent the value by the sum inside of `down`."""
    (incident,) = reports[task][0]["incidents"]
    assert incident["rank"] == 1 and incident["step"] == BAD_STEP
    assert [finding["code"] for finding in incident["findings"]][:1] == ["DAT001"]


@pytest.mark.parametrize("task", ["weight", "weight watch"])
def test_a_bad_shard_brings_all_shards_back(reports: Reports, task: str) -> None:
    later = str(BAD_STEP + 1 if "watch" in task else BAD_STEP)
    for report in reports[task]:
        assert report["events"] == ["rollback"] and report["seen"][later] == report["seen"]["4"]
    assert reports[task][0]["weights"] == reports[task][1]["weights"]
    (incident,) = reports[task][0]["incidents"]
    assert not incident["findings"], "a value that another rank sent is no bad batch"


def test_a_bad_moment_of_one_shard_is_put_back(reports: Reports) -> None:
    zero, one = reports["moment"]
    assert zero["events"] == one["events"] == ["repair"] and zero["weights"] == one["weights"]
