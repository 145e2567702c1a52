"""The distillation system under guard: every update divides by zero, so the run stops clean and says why."""

from __future__ import annotations

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

EXAMPLE = load_example("fp16_distillation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fp16")


@pytest.fixture(scope="module")
def config(folder: Path) -> Path:
    return write_config(EXAMPLE, "config.yaml", folder, cache_dir=str(folder))


@pytest.fixture(scope="module")
def stopped(config: Path, folder: Path) -> Outcome:
    return run_guarded(EXAMPLE, config, folder / "stopped")


def test_the_incident_names_the_update_and_the_half_arithmetic(stopped: Outcome) -> None:
    (incident,) = stopped.incidents
    assert (incident.step, incident.phase) == (0, "optimizer")
    assert incident.birth is not None and incident.birth.op == "aten.addcdiv_.default"
    assert_born(incident, EXAMPLE, "train_guarded.py", "guard.step(")
    first = incident.findings[0]
    assert (first.cause, first.evidence["eps"]) == ("PURE_LOWP_OPTIMIZER", 1e-8)


def test_the_audit_warns_before_the_first_step(stopped: Outcome) -> None:
    lines = (stopped.folder / "run.jsonl").read_text().splitlines()
    assert "STA003" in lines[1]  # eps is 0 in float16: said before any step was made


def test_the_run_stops_clean_and_says_why(stopped: Outcome, config: Path) -> None:
    assert stopped.code == 1
    assert "No update could be applied at all" in stopped.printed
    assert "half-optimizer-update" in stopped.printed
    assert stopped.result["skipped"] == 10 and stopped.result["applied"] == 0
    stopped.assert_counters_are_right()
    stopped.assert_all_state_is_finite()
    fresh = EXAMPLE.train.build(EXAMPLE.train.read_config(config))
    saved = torch.load(stopped.checkpoint, weights_only=True)["model"]["model"]
    assert all(torch.equal(saved[name], value) for name, value in fresh.model.state_dict().items())


def test_router_entropy_and_terms_are_in_the_record(stopped: Outcome) -> None:
    record = stopped.records[0]
    assert set(record["components"]) == {"kd", "ce", "anchor", "load_balance", "router_entropy"}
    low, high = record["observed"]["router_entropy"]
    assert 0 < low <= high < 1.4  # at most log(4) for four experts


def test_the_cured_run_is_through_with_every_step_applied(folder: Path) -> None:
    cured = write_config(EXAMPLE, "cured.yaml", folder, cache_dir=str(folder))
    outcome = run_guarded(EXAMPLE, cured, folder / "cured", "--steps", 20)
    assert outcome.code == 0 and not outcome.incidents
    assert outcome.result["applied"] + outcome.result["backoffs"] == 20
    outcome.assert_counters_are_right()
    outcome.assert_all_state_is_finite()


def test_scan_finds_the_poisoned_checkpoint_and_that_none_is_good(config: Path, folder: Path) -> None:
    run_plain(EXAMPLE, config, folder / "plain", "--steps", 2)
    checkpoint = folder / "plain" / "step_000002.pt"
    assert bad_tensors(torch.load(checkpoint, weights_only=True))
    code, printed = scan("--last-good", folder / "plain")
    assert code == 1 and "no healthy checkpoint here" in printed
    assert "first bad tensor: model.teacher.blocks.0.mlp.gate.weight" in printed
    _, printed = scan(checkpoint, "--config", EXAMPLE.folder / "config.safe.yaml", "--select", "CKP022")
    assert "optim.lr is 5e-06" in printed and "peak 0.002" in printed


@pytest.mark.long
def test_the_unchanged_script_gets_the_same_explanation(stopped: Outcome, config: Path, folder: Path) -> None:
    watched = run_watched(EXAMPLE, config, folder, "--steps", 2)
    assert_same_explanation(watched, stopped.incidents[0])
    assert_born(watched, EXAMPLE, "train.py", "        parts.optimizer.step()")
