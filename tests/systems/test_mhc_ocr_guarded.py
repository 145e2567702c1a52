"""The plate reader under guard: the float16 overflow is found, batch norm stays clean, check points tell the growth."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from systems.load_example import load_example
from systems.under_guard import (
    Outcome,
    assert_born,
    assert_same_explanation,
    bad_tensors,
    run_guarded,
    run_plain,
    run_watched,
    scan,
    write_config,
)

EXAMPLE = load_example("mhc_ocr")

# GradScaler skips the first updates while it looks for its scale, and the loop steps its scheduler all the same.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")

SEED = 16  # an early one of the seeds 0 to 24
SAVED_EVERY = 3
FAILS_WITHIN = range(SAVED_EVERY, 11)  # steps, counted from 0; which one hangs on how the processor rounds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mhc")


@pytest.fixture(scope="module")
def config(folder: Path) -> Path:
    return write_config(
        EXAMPLE, "config.yaml", folder, eval_plates=2, accelerated={"evaluate_every": SAVED_EVERY}
    )


@pytest.fixture(scope="module")
def guarded(config: Path, folder: Path) -> Outcome:
    return run_guarded(EXAMPLE, config, folder / "guarded", "--seed", SEED, "--steps", 12)


@pytest.fixture(scope="module")
def fails_at(guarded: Outcome) -> int:
    return guarded.incidents[0].step


def test_the_incident_names_the_convolution_and_float16(guarded: Outcome) -> None:
    incident = guarded.incidents[0]
    assert incident.step in FAILS_WITHIN
    assert (incident.phase, incident.trigger) == ("forward", "loss")
    assert incident.birth is not None and incident.birth.op == "aten.convolution.default"
    assert_born(incident, EXAMPLE, "model.py", "return F.relu(self.branch(x) + self.shortcut(x))")
    causes = [finding.cause for finding in incident.findings]
    assert causes[0] == "FP16_OVERFLOW" and "STATE_POISONED" in causes  # the buffers are its consequence


def test_state_is_finite_and_counters_are_right(guarded: Outcome) -> None:
    assert guarded.code == 0
    assert guarded.result["skipped"] > 0
    guarded.assert_counters_are_right()
    guarded.assert_all_state_is_finite()
    saved = torch.load(guarded.checkpoint, weights_only=True)
    assert saved["scaler"]["scale"] >= 1.0


def test_check_points_show_where_the_streams_grow(guarded: Outcome) -> None:
    """Five points of every connection, its alphas and the logits H of its mixing matrix, in record and incident."""
    points = {"pooled", "read_out", "sublayer", "streams", "H", "alphas"}
    first = guarded.records[0]["observed"]
    for block in ("0.blocks.0", *(f"1.blocks.{i}" for i in range(6))):
        assert {f"{block}.{point}" for point in points} <= set(first)
    assert {"0.final", "1.final", "2.final"} <= set(first)
    peaks = [first[f"1.blocks.{i}.streams"][1] for i in range(6)]
    assert all(later > 2 * earlier for earlier, later in pairwise(peaks))
    seen = {tensor.name: tensor for tensor in guarded.incidents[0].observed}
    assert seen["1.final"].nan + seen["1.final"].inf == 0 < seen["2.final"].nan + seen["2.final"].inf


def test_scan_finds_the_poisoned_buffers_and_the_last_good_one(
    config: Path, folder: Path, fails_at: int
) -> None:
    run_plain(EXAMPLE, config, folder / "plain", "--seed", SEED, "--steps", fails_at + 1)
    last_saved = fails_at - fails_at % SAVED_EVERY
    good, bad = (folder / "plain" / f"step_{step:06d}.pt" for step in (last_saved, fails_at + 1))
    state = torch.load(bad, weights_only=True)
    assert bad_tensors(state["model"]) and not bad_tensors(state["optimizer"])
    code, printed = scan("--last-good", folder / "plain")
    assert code == 1
    assert f"last good: {good}" in printed and f"trouble starts in {bad}" in printed
    assert "running_mean (buffers)" in printed
    _, printed = scan(good, "--config", EXAMPLE.folder / "config.safe.yaml", "--select", "CKP022")
    assert "lr is 0.0001" in printed and "peak 0.02" in printed


def test_the_unchanged_script_gets_the_same_explanation(
    guarded: Outcome, config: Path, folder: Path, fails_at: int
) -> None:
    watched = run_watched(EXAMPLE, config, folder, "--seed", SEED, "--steps", fails_at + 1)
    assert_same_explanation(watched, guarded.incidents[0])
