"""The five systems as they fail: named before any training, and after the failing run window, checkpoint and plan."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import preloaded
from doctor.test_doctor import codes, examined
from stayfinite.doctor.probe import FunctionProbe

EXAMPLES = Path(__file__).parents[2] / "examples"
BEFORE = {
    "temi_clustering": {"SRC007"},  # the gradient of a power below 1
    "mhc_ocr": {"SRC004", "SRC027"},  # eps 1e-20, the diagonal of an einsum
    "latent_dlm": {"CFG013", "CFG005"},  # keys without effect, a rate far above its ceiling
    "radiodiff": {"CFG003"},  # precisions that contradict each other, no scaler
    "fp16_distillation": {"CFG002", "SRC003", "SRC029"},  # an eps that is zero in half
}
PROBE = """\
import torch
import train


def values(path):
    config = train.read_config(train.HERE / "often.yaml")
    parts = train.build(config)
    parts.load(torch.load(path, weights_only=True))
    return train.loss_components(parts, next(iter(parts.loader)))
"""


def copied(name: str, folder: Path) -> Path:
    return Path(
        shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    )


def run_to_failure(folder: Path, steps: int, every: int, seed: int = 0) -> list[dict[str, object]]:
    """The example's own script with its own settings, saved more often; what it logged."""
    text = (folder / "config.yaml").read_text()
    lines = [
        f"{line.partition(':')[0]}: {every}" if "evaluate_every" in line else line
        for line in text.splitlines()
    ]
    (folder / "often.yaml").write_text("\n".join(lines) + "\n")
    command = [
        sys.executable,
        "train.py",
        "--config",
        "often.yaml",
        "--steps",
        str(steps),
        "--seed",
        str(seed),
    ]
    preloaded.run(
        command,
        cwd=folder,
        check=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return [json.loads(line) for line in (folder / "runs/often/log.jsonl").read_text().splitlines()]


def first_bad(records: list[dict[str, object]]) -> int:
    """The first step of the run's last stretch: loss or norm that was written as a word."""
    return next(
        int(str(r["step"])) for r in records if isinstance(r.get("loss"), str) or r.get("grad_norm") == "nan"
    )


@pytest.mark.parametrize("name", BEFORE)
def test_the_cause_is_named_before_any_training(name: str, tmp_path: Path) -> None:
    _, project, findings, plan = examined(copied(name, tmp_path))
    assert BEFORE[name] <= codes(findings)
    assert project.runs == []
    first = plan[0].title
    assert any(code in first for code in BEFORE[name]), first


@pytest.mark.parametrize(
    ("name", "steps", "every", "seed"),
    [
        ("temi_clustering", 4, 2, 0),
        pytest.param("fp16_distillation", 4, 1, 0, marks=pytest.mark.long),
        pytest.param("radiodiff", 40, 10, 2, marks=pytest.mark.long),
        pytest.param("mhc_ocr", 80, 20, 0, marks=pytest.mark.long),
    ],
)
def test_after_the_failing_run(name: str, steps: int, every: int, seed: int, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    records = run_to_failure(folder, steps, every, seed)
    _, project, findings, plan = examined(folder)
    (run,) = project.runs
    assert run.window is not None and run.window.first == first_bad(records) and not run.window.over
    assert run.configs == [str(folder / "often.yaml")]
    good = run.last_good()
    before = [s for s in range(every, steps + 1, every) if s < run.window.first]
    assert (good.step if good else None) in (before[-1] if before else None, None)
    if good is None:
        assert any("no checkpoint is good" in step.title for step in plan)
    else:
        assert any(good.path in command for step in plan for command in step.commands)
    assert any(code in plan[0].title for code in BEFORE[name])
    assert {"LOG001", "PRJ005"} <= codes(findings)


@pytest.mark.long
def test_a_dead_but_finite_checkpoint_of_latent_dlm_by_log_and_by_probe(tmp_path: Path) -> None:
    folder = copied("latent_dlm", tmp_path)
    records = run_to_failure(folder, 32, 8)
    _, project, findings, _ = examined(folder)
    (run,) = project.runs
    assert all(saved.healthy for saved in run.saved)  # a scan of the numbers sees nothing
    assert run.window is not None and run.window.first == first_bad(records)
    assert run.saved_in_failure() and "PRJ004" in codes(findings)
    by_log = run.last_good()
    failed_at_once = by_log is not None and run.failed_at_once(by_log)
    (folder / "check.py").write_text(PROBE)
    (folder / "runs/often/log.jsonl").unlink()
    _, project, findings, _ = examined(folder, FunctionProbe.parse(f"{folder / 'check.py'}:values"))
    by_probe = project.runs[0].last_good()
    assert by_log is not None and by_probe is not None
    # A log cannot tell that weights are dead if the step after them is the first to fail (on some processors).
    assert by_probe.step == (by_log.step if not failed_at_once else by_log.step - 8)
    assert project.runs[0].saved[-1].dead is not None and "PRJ004" in codes(findings)
