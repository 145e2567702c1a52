"""The clustering system under guard: the power is found, nothing is spoiled, and a late failure is survived."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from systems.load_example import load_example
from systems.under_guard import (
    Outcome,
    assert_born,
    assert_same_explanation,
    run_guarded,
    run_plain,
    run_watched,
    scan,
    write_config,
)

EXAMPLE = load_example("temi_clustering")
POWER = "(student * teacher) ** beta / marginal"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temi")


@pytest.fixture(scope="module")
def config(folder: Path) -> Path:
    return write_config(EXAMPLE, "config.yaml", folder, cache_dir=str(folder))


@pytest.fixture(scope="module")
def stopped(config: Path, folder: Path) -> Outcome:
    return run_guarded(EXAMPLE, config, folder / "stopped")


def test_the_incident_names_the_power_and_its_slope_at_zero(stopped: Outcome) -> None:
    (incident,) = stopped.incidents
    assert (incident.step, incident.phase, incident.trigger) == (0, "backward", "gradient")
    assert_born(incident, EXAMPLE, "loss.py", POWER)
    assert incident.findings[0].cause == "SQRT_POW_GRAD_AT_ZERO"
    assert len(stopped.records[0]["components"]) == 16  # one loss per head


def test_a_run_that_cannot_be_skipped_into_health_stops_and_says_so(stopped: Outcome) -> None:
    assert stopped.code == 1
    assert "No update could be applied at all" in stopped.printed
    assert "root-gradient-at-zero" in stopped.printed
    assert stopped.result["skipped"] == 10 and stopped.result["applied"] == 0
    stopped.assert_counters_are_right()
    stopped.assert_all_state_is_finite()


def test_ten_refused_steps_left_no_trace(stopped: Outcome, config: Path) -> None:
    """Weights, teacher and the marginals of the loss are what they were before the first step."""
    fresh = EXAMPLE.train.build(EXAMPLE.train.read_config(config))
    saved = torch.load(stopped.checkpoint, weights_only=True)
    for name, value in fresh.model.state_dict().items():
        assert torch.equal(saved["model"]["student"][name], value)
    assert torch.equal(saved["model"]["loss"]["marginal"], fresh.loss.marginal)


def test_a_late_failure_is_survived_and_the_clustering_improves(folder: Path) -> None:
    late = write_config(EXAMPLE, "config.late.yaml", folder, cache_dir=str(folder))
    start = EXAMPLE.train.build(EXAMPLE.train.read_config(late)).evaluate()
    outcome = run_guarded(EXAMPLE, late, folder / "late", "--steps", 120)
    assert outcome.code == 0
    assert_born(outcome.incidents[0], EXAMPLE, "loss.py", POWER)
    assert outcome.result["skipped"] > 0
    assert outcome.result["nmi"] > start["nmi"] + 0.1
    outcome.assert_counters_are_right()
    outcome.assert_all_state_is_finite()


def test_scan_finds_the_poisoned_checkpoint_and_the_last_good_one(folder: Path) -> None:
    late = write_config(
        EXAMPLE, "config.late.yaml", folder, cache_dir=str(folder), train={"steps": 70, "evaluate_every": 35}
    )
    run_plain(EXAMPLE, late, folder / "plain")
    code, printed = scan("--last-good", folder / "plain")
    assert code == 1
    assert f"last good: {folder / 'plain' / 'step_000035.pt'}" in printed
    assert f"trouble starts in {folder / 'plain' / 'step_000070.pt'}" in printed
    safe = EXAMPLE.folder / "config.safe.yaml"
    code, printed = scan(folder / "plain" / "step_000035.pt", "--config", safe, "--select", "CKP022")
    assert "optim.lr is 5e-05" in printed and "peak 0.02" in printed


def test_the_unchanged_script_gets_the_same_explanation(stopped: Outcome, config: Path, folder: Path) -> None:
    watched = run_watched(EXAMPLE, config, folder, "--steps", 2)
    assert_same_explanation(watched, stopped.incidents[0])
