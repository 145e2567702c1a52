"""Each PRJ rule fires on a project with the fault and is silent on its healthy twin; logs and checkpoints are real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stayfinite.doctor.budget import Budget
from stayfinite.doctor.compare import all_findings, compare
from stayfinite.doctor.examine import examine_project
from stayfinite.doctor.inventory import take_inventory
from stayfinite.findings import Finding
from stayfinite.lint.settings import Settings


def found_in(folder: Path, code: str) -> list[Finding]:
    found = examine_project(take_inventory(str(folder)), Settings(), Budget(0))
    return [finding for finding in all_findings(found, compare(found)) if finding.code == code]


def write_run(
    folder: Path, steps: range, saved: list[int], *, stored: float = 1e-3, logged: float = 1e-3
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": s, "loss": 2.0 - 1e-3 * s, "lr": logged}) for s in steps]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), stored)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    for step in saved:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, folder / f"step_{step}.pt")


def test_a_saved_rate_that_the_log_never_shows(tmp_path: Path) -> None:
    write_run(tmp_path / "bad", range(1, 101), [50], stored=5e-3, logged=1e-3)
    write_run(tmp_path / "good", range(1, 101), [50])
    (finding,) = found_in(tmp_path / "bad", "PRJ001")
    assert finding.evidence["step"] == 50 and "0.005" in finding.message
    assert found_in(tmp_path / "good", "PRJ001") == []


def test_a_rate_that_the_schedule_moves_is_no_difference(tmp_path: Path) -> None:
    """Warm-up logged before the scheduler's step, and the end of the run, where the next rate is not known."""
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=60)
    lines = []
    for step in range(1, 60):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        optimizer.step()
        lines.append(json.dumps({"step": step, "loss": loss.item(), "lr": scheduler.get_last_lr()[0]}))
        scheduler.step()
        if step % 5 == 0 or step == 59:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "scheduler": scheduler.state_dict()}, tmp_path / f"step_{step}.pt")
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    assert found_in(tmp_path, "PRJ001") == []


PLACES = {
    "launcher against configuration": (
        "mixed_precision: bf16\n",
        "accelerate launch --mixed_precision fp16 train.py\n",
        "",
    ),
    "flag against configuration": ("bf16: true\n", "python train.py \\\n  --fp16 \\\n  --seed 1\n", ""),
    "variable against configuration": (
        "precision: bf16\n",
        "ACCELERATE_MIXED_PRECISION=fp16 python train.py\n",
        "",
    ),
    "log against configuration": ("precision: bf16\n", "", "Using 16bit Automatic Mixed Precision (AMP)\n"),
}
AGREEING = {
    "the same word": ("mixed_precision: bf16\n", "accelerate launch --mixed_precision bf16 train.py\n", ""),
    "a flag that is off": ("bf16: true\n", "python train.py --fp16 false\n", ""),
    "a comment": ("precision: bf16\n", "# python train.py --precision fp16\npython train.py\n", ""),
    "the log agrees": ("precision: bf16\n", "", "Using bfloat16 Automatic Mixed Precision (AMP)\n"),
}


def write_places(folder: Path, config: str, launcher: str, printed: str) -> None:
    (folder / "config.yaml").write_text("lr: 0.001\nbatch_size: 8\n" + config)
    (folder / "run.sh").write_text("#!/bin/sh\n" + launcher)
    lines = "".join(f"step {step} loss {2 - 0.01 * step:.3f}\n" for step in range(1, 40))
    (folder / "train.log").write_text(printed + lines)


@pytest.mark.parametrize("name", PLACES)
def test_two_places_name_two_precisions(name: str, tmp_path: Path) -> None:
    write_places(tmp_path, *PLACES[name])
    (finding,) = found_in(tmp_path, "PRJ002")
    assert set(finding.evidence.values()) == {"bf16", "fp16"}


@pytest.mark.parametrize("name", AGREEING)
def test_places_that_agree_are_silent(name: str, tmp_path: Path) -> None:
    write_places(tmp_path, *AGREEING[name])
    assert found_in(tmp_path, "PRJ002") == []


def test_a_loss_scale_in_the_log_says_float16(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("lr: 0.001\nbatch_size: 8\nprecision: bf16\n")
    lines = [json.dumps({"step": s, "loss": 1.0 / s, "scale": 65536.0}) for s in range(1, 40)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    assert len(found_in(tmp_path, "PRJ002")) == 1
    (tmp_path / "config.yaml").write_text("lr: 0.001\nbatch_size: 8\nprecision: fp16\n")
    assert found_in(tmp_path, "PRJ002") == []


def test_checkpoints_beyond_the_log(tmp_path: Path) -> None:
    write_run(tmp_path / "bad", range(1, 101), [50, 100, 9000])
    write_run(tmp_path / "good", range(1, 101), [50, 100])
    write_run(tmp_path / "other_units", range(1, 11), [5000, 10000])  # epochs in the log, steps in the names
    (finding,) = found_in(tmp_path / "bad", "PRJ003")
    assert finding.evidence == {"step": 9000, "log_ends": 100, "count": 1}
    assert found_in(tmp_path / "good", "PRJ003") == []
    assert found_in(tmp_path / "other_units", "PRJ003") == []


def fail_from(folder: Path, step: int, last: int = 100) -> None:
    lines = [
        json.dumps({"step": s, "loss": "nan" if step <= s <= last else 1.0 - 1e-3 * s}) for s in range(1, 101)
    ]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")


def test_saved_during_the_failure_and_the_last_good_before_it(tmp_path: Path) -> None:
    write_run(tmp_path, range(1, 101), [20, 40, 60])
    assert found_in(tmp_path, "PRJ004") == [] and found_in(tmp_path, "PRJ005") == []
    fail_from(tmp_path, 45)
    (dead,) = found_in(tmp_path, "PRJ004")
    assert dead.evidence["steps"] == [60]
    (good,) = found_in(tmp_path, "PRJ005")
    assert good.evidence["step"] == 40 and "step_40.pt" in good.message
    fail_from(tmp_path, 10)
    (none,) = found_in(tmp_path, "PRJ005")
    assert "no checkpoint from before the trouble" in none.message and "written at step 20" in none.message


def test_saved_right_after_the_failure_is_not_said_to_be_inside(tmp_path: Path) -> None:
    write_run(tmp_path, range(1, 101), [20, 99])
    fail_from(tmp_path, 45, 98)
    (doubtful,) = found_in(tmp_path, "PRJ004")
    assert (
        "written at step 99, too soon after the failure (loss not finite, step 45 to 98)" in doubtful.message
    )


def test_a_damaged_checkpoint_from_before_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    write_run(tmp_path, range(1, 101), [20, 60])
    whole = (tmp_path / "step_20.pt").read_bytes()
    (tmp_path / "step_20.pt").write_bytes(whole[: len(whole) // 2])
    fail_from(tmp_path, 45)
    (none,) = found_in(tmp_path, "PRJ005")
    assert "step_20.pt (step 20): " in none.message and "first of" not in none.message
    assert "save more often" not in none.fix
