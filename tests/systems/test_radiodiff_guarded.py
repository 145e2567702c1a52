"""The radio-map system under guard: the accidental float16 is named, all state stays clean, the run recovers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from systems.load_example import load_example
from systems.under_guard import (
    Outcome,
    assert_same_explanation,
    bad_tensors,
    run_guarded,
    run_plain,
    run_watched,
    scan,
    write_config,
)

EXAMPLE = load_example("radiodiff")
SEED = 0
FAILS_WITHIN = range(18, 41)  # steps, counted from 0; which one hangs on how the processor rounds
SAVED_EVERY = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("radio")


@pytest.fixture(scope="module")
def config(folder: Path) -> Path:
    return write_config(EXAMPLE, "config.yaml", folder, accelerated={"evaluate_every": SAVED_EVERY})


@pytest.fixture(scope="module")
def guarded(config: Path, folder: Path) -> Outcome:
    return run_guarded(EXAMPLE, config, folder / "guarded", "--seed", SEED, "--steps", 70)


@pytest.fixture(scope="module")
def fails_at(guarded: Outcome) -> int:
    return guarded.incidents[0].step


def test_the_incident_names_the_convolution_and_float16(guarded: Outcome) -> None:
    incident = guarded.incidents[0]
    assert incident.step in FAILS_WITHIN
    assert (incident.phase, incident.trigger) == ("forward", "loss")
    text = "return F.conv2d(x, weight, self.bias, self.stride, self.padding)"
    lines = (EXAMPLE.folder / "model.py").read_text().splitlines()
    plain = next(
        number for number, line in enumerate(lines, start=1) if text in line
    )  # the cured form is below it
    assert incident.birth is not None and incident.birth.file == str(EXAMPLE.folder / "model.py")
    assert (incident.birth.line, incident.birth.op) == (plain, "aten.convolution.default")
    assert incident.findings[0].cause == "FP16_OVERFLOW"


def test_the_audit_names_the_precision_that_really_runs(guarded: Outcome) -> None:
    """The configuration says bf16; what runs is float16 without a scaler."""
    assert EXAMPLE.train.read_config(EXAMPLE.folder / "config.yaml")["mixed_precision"] == "bf16"
    found = [line for line in (guarded.folder / "run.jsonl").read_text().splitlines() if "STA007" in line]
    assert len(found) == 1 and "float16 autocast without a GradScaler" in found[0]


def test_the_run_recovers_with_clean_weights_and_averages(guarded: Outcome) -> None:
    assert guarded.code == 0 and guarded.result["rollbacks"] >= 1
    start = EXAMPLE.train.build({**EXAMPLE.train.read_config(EXAMPLE.folder / "config.yaml"), "seed": SEED})
    assert guarded.result["nmse"] < 0.7 * start.evaluate()["nmse"]
    guarded.assert_counters_are_right()
    guarded.assert_all_state_is_finite()
    saved = torch.load(guarded.checkpoint, weights_only=True)
    assert not bad_tensors(saved["ema"]) and set(saved["model"]) == {"model", "vae"}


def test_every_level_is_in_record_and_incident(guarded: Outcome) -> None:
    levels = {"x_noisy", "predicted_c", "predicted_noise", "x_start", "noise"}
    assert set(guarded.records[0]["observed"]) == levels
    seen = {tensor.name: tensor for tensor in guarded.incidents[0].observed}
    assert seen["predicted_c"].nan > 0
    assert not any(seen[name].nan or seen[name].inf for name in ("x_noisy", "x_start", "noise"))


def test_scan_finds_the_poisoned_checkpoint_and_the_last_good_one(
    config: Path, folder: Path, fails_at: int
) -> None:
    run_plain(EXAMPLE, config, folder / "plain", "--seed", SEED, "--steps", fails_at + 1)
    last_saved = fails_at - fails_at % SAVED_EVERY
    good, bad = (folder / "plain" / f"step_{step:06d}.pt" for step in (last_saved, fails_at + 1))
    state = torch.load(bad, weights_only=True)
    assert bad_tensors(state["model"]) and bad_tensors(state["ema"])
    code, printed = scan("--last-good", folder / "plain")
    assert code == 1
    assert f"last good: {good}" in printed and f"trouble starts in {bad}" in printed
    _, printed = scan(good, "--config", EXAMPLE.folder / "config.safe.yaml", "--select", "CKP022")
    assert "lr is 1e-05" in printed and "peak 0.3" in printed


def test_the_unchanged_script_gets_the_same_explanation(
    guarded: Outcome, config: Path, folder: Path, fails_at: int
) -> None:
    watched = run_watched(EXAMPLE, config, folder, "--seed", SEED, "--steps", fails_at + 2)
    assert_same_explanation(watched, guarded.incidents[0])
