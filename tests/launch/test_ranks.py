"""`stayfinite run` on several ranks: real processes, one folder, one report, exit codes, kills and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs the gloo backend")
SCRIPT = Path(__file__).with_name("ranks_script.py")
BAD = 5
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
ENVIRONMENT["OMP_NUM_THREADS"] = "1"
STAYFINITE = [sys.executable, "-m", "stayfinite", "run"]


def started(folder: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(folder: Path, *command: str) -> tuple[int, str, str]:
    process = started(folder, *command)
    try:
        output, errors = process.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"it hangs: {process.communicate()[1][-2000:]}")
    return process.returncode, output, errors


def sums(output: str) -> set[str]:
    """What the ranks ended with."""
    found = re.findall(r"ends with (-?[\d.]+(?:e-?\d+)?|nan)", output)
    assert len(found) == 2, output
    return set(found)


def the_incident(folder: Path) -> dict[str, Any]:
    (run,) = (folder / "stayfinite-runs").iterdir()
    (file,) = run.rglob("incident.json")
    assert file == run / "incidents" / "0001" / "incident.json"
    assert (run / "run.jsonl").exists() and (run / "rank1" / "run.jsonl").exists()
    incident: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return incident


def check_one_report(folder: Path, output: str, errors: str) -> None:
    assert len(sums(output)) == 1 and "nan" not in output
    assert errors.count("Born at") == 1 and errors.count("the update is not applied") == 1
    assert "on rank 1" in errors and "division-by-nothing" in errors
    incident = the_incident(folder)
    assert (incident["step"], incident["rank"], incident["world_size"]) == (BAD, 1, 2)
    assert "born-here" in incident["birth"]["source"] and incident["action"] == "skip"


def test_ranks_that_we_start_give_one_folder_and_one_report(tmp_path: Path) -> None:
    given = ("--nproc-per-node", "2", "--format", "json", "--output", "found.json", str(SCRIPT), "batch")
    code, output, errors = ended(tmp_path, *STAYFINITE, *given)
    assert code == 0, errors
    check_one_report(tmp_path, output, errors)
    (told,) = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["incidents"]
    assert told["rank"] == 1


@pytest.mark.long
def test_under_torchrun(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    code, output, errors = ended(tmp_path, *launcher, "-m", "stayfinite", "run", str(SCRIPT), "batch")
    assert code == 0, errors
    check_one_report(tmp_path, output, errors)


@pytest.mark.long
@pytest.mark.parametrize("name", [["-m", "torch.distributed.run"], ["torchrun"]])
def test_around_torchrun(tmp_path: Path, name: list[str]) -> None:
    code, output, errors = ended(tmp_path, *STAYFINITE, *name, "--nproc-per-node", "2", str(SCRIPT), "batch")
    assert code == 0, errors
    check_one_report(tmp_path, output, errors)


@pytest.mark.long
def test_a_healthy_run_says_nothing_leaves_nothing_and_has_the_same_bits(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    _, plain, _ = ended(tmp_path, *launcher, str(SCRIPT), "healthy")
    code, output, errors = ended(tmp_path, *STAYFINITE, "--nproc-per-node", "2", str(SCRIPT), "healthy")
    assert (code, errors) == (0, "")
    assert sums(output) == sums(plain)
    assert not list(tmp_path.iterdir())


def test_a_rank_that_is_killed_ends_the_others_and_is_named(tmp_path: Path) -> None:
    begun = time.monotonic()
    code, output, errors = ended(tmp_path, *STAYFINITE, "--nproc-per-node", "2", str(SCRIPT), "kill")
    assert code == 128 + signal.SIGKILL
    assert "rank 1 was ended by SIGKILL" in errors and "ends with" not in output
    assert time.monotonic() - begun < 150, "the other rank waited for its own time-out"


@pytest.mark.long
@pytest.mark.parametrize("lost", ["0", "1"])
def test_what_is_known_of_a_refused_step_outlives_a_rank_that_dies_while_it_is_located(
    tmp_path: Path, lost: str
) -> None:
    """Rank 1 repeats its step. It locates it without rank 0; without rank 1 nobody does, and that is said."""
    code, _, errors = ended(tmp_path, *STAYFINITE, "--nproc-per-node", "2", str(SCRIPT), "lost", lost)
    said = " ".join(errors.split())
    assert code == 128 + signal.SIGKILL and f"rank {lost} was ended by SIGKILL" in said
    assert "Step 5 had been refused: the loss is nan on rank 1." in said and said.count("RankLost:") == 1
    incident = the_incident(tmp_path)
    assert (incident["step"], incident["rank"], incident["world_size"]) == (BAD, 1, 2)
    if lost == "0":
        assert "born-here" in incident["birth"]["source"] and "division-by-nothing" in said
    else:
        assert incident["birth"] is None and not incident["findings"]
        assert incident["not_located"] == "a rank was lost before rank 1 could tell"


@pytest.mark.long
def test_a_rank_that_raises_ends_the_run_with_its_code(tmp_path: Path) -> None:
    code, _, errors = ended(tmp_path, *STAYFINITE, "--nproc-per-node", "2", str(SCRIPT), "raise")
    assert code == 1 and errors.count("ValueError: rank 1 has had enough") == 1
    assert "Born at" not in errors


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_of_them(tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path, *STAYFINITE, "--nproc-per-node", "2", str(SCRIPT), "wait")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("training")  # two ranks may write into one line
    process.send_signal(number)
    process.communicate(timeout=100)
    assert process.returncode == 128 + number
    left = subprocess.run(["pgrep", "-f", str(SCRIPT)], capture_output=True, text=True, check=False).stdout
    assert not left, f"still running: {left}"


@pytest.mark.long
def test_copies_of_a_script_that_is_not_distributed_are_told_apart(tmp_path: Path) -> None:
    code, output, errors = ended(tmp_path, *STAYFINITE, "--nproc-per-node", "2", str(SCRIPT), "alone")
    assert code == 0 and "nan" not in output
    assert "2 copies of it trained, each by itself" in errors and errors.count("Born at") == 1
    assert len(list((tmp_path / "stayfinite-runs").iterdir())) == 1


STARTS_ITS_SECOND_RANK = """
import os, subprocess, sys
import torch
import torch.distributed as dist
rank = int(sys.argv[1]) if len(sys.argv) > 1 else 0
if rank == 0:
    other = subprocess.Popen([sys.executable, os.path.abspath("train.py"), "1"])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    loss = model(torch.full((2, 4), 1.0 + rank)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("ends with", round(sum(float(p.detach().sum()) for p in model.parameters()), 6), flush=True)
dist.barrier()
if rank == 0:
    sys.exit(other.wait())
"""


@pytest.mark.long
def test_a_rank_that_the_script_starts_itself_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STARTS_ITS_SECOND_RANK)
    code, output, errors = ended(tmp_path, *STAYFINITE, "train.py")
    assert code == 0 and len(sums(output)) == 1
    said = " ".join(errors.split())
    assert "watched but not guarded: not all 2 ranks" in said and "--nproc-per-node 2" in said
