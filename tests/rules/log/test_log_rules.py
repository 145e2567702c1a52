"""Each LOG rule finds its planted fault, says where, and its healthy twin is silent."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from stayfinite.findings import Finding, Severity
from stayfinite.findings.subjects.log import ConfiguredLogRate
from stayfinite.logs import examine_log
from stayfinite.logs.examine import judge
from training_logs.made import codes, log_of
from training_logs.written import json_lines

N = 400
RNG = random.Random(5)
LOSS = [2 * math.exp(-step / 150) + 0.5 + abs(RNG.gauss(0, 0.03)) for step in range(N)]
NORM = [1 + abs(RNG.gauss(0, 0.2)) for _ in range(N)]
RATE = [1e-3] * N


def one(found: list[Finding], code: str) -> Finding:
    chosen = [finding for finding in found if finding.code == code]
    assert len(chosen) == 1, [(finding.code, finding.message) for finding in found]
    return chosen[0]


def findings(columns: dict[str, list[float]], steps: list[float] | None = None) -> list[Finding]:
    return judge(log_of(columns, steps)).findings


def broken(values: list[float], start: int, value: float = math.nan, end: int = N) -> list[float]:
    return [value if start <= index < end else number for index, number in enumerate(values)]


def test_the_first_bad_loss_and_its_window() -> None:
    found = one(findings({"loss": broken(LOSS, 300), "grad_norm": NORM, "lr": RATE}), "LOG001")
    assert found.severity is Severity.ERROR and found.line == 301
    assert found.evidence["first_step"] == 300 and found.evidence["last_step"] == N - 1
    assert found.evidence["around"]["lr"] == 1e-3 and not found.evidence["recovered"]
    assert "step 300" in found.message and "learning rate 0.001" in found.message


def test_one_bad_loss_that_did_not_stay_is_a_warning() -> None:
    found = one(findings({"loss": broken(LOSS, 300, math.inf, 301)}), "LOG001")
    assert found.severity is Severity.WARNING and found.evidence["recovered"]


@pytest.mark.parametrize("refused", [True, False])
def test_steps_that_a_guard_refused_did_no_harm(tmp_path: Path, refused: bool) -> None:
    records = [
        {
            "step": step,
            "loss": "inf" if step % 20 == 7 else LOSS[step],
            "grad_norm": 1.0,
            "action": "skip" if refused and step % 20 == 7 else "none",
        }
        for step in range(N)
    ]
    vitals = [{"event": "vitals", "step": step, "skipped": 0.3} for step in range(20)]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records + vitals))
    found = examine_log(str(path)).findings
    loss = one(found, "LOG001")
    assert loss.evidence["recovered"] and loss.evidence["refused"] == (20 if refused else 0)
    assert loss.severity is (Severity.WARNING if refused else Severity.ERROR)
    assert ("none of these steps was applied" in loss.message) is refused
    assert "go back" not in loss.fix
    assert [f for f in found if f.code == "LOG012"] == []  # 20 of 400; 0.3 is that of a stretch


def test_a_component_is_named_before_the_total() -> None:
    found = one(findings({"loss": broken(LOSS, 301), "loss_kd": broken(LOSS, 300)}), "LOG001")
    assert found.message.startswith("loss_kd became NaN at step 300") and "also loss" in found.message


def test_a_validation_loss_of_its_own() -> None:
    assert "eval_loss" in one(findings({"loss": LOSS, "eval_loss": broken(LOSS, 390)}), "LOG001").message


def test_the_norm_goes_first() -> None:
    found = findings({"loss": broken(LOSS, 303), "grad_norm": broken(NORM, 300), "lr": RATE})
    assert {finding.code for finding in found} == {"LOG001", "LOG002"}
    assert "before any loss" in one(found, "LOG002").message


def test_a_norm_that_stays_bad_while_the_loss_is_finite() -> None:
    found = one(findings({"loss": LOSS, "grad_norm": broken(NORM, 300)}), "LOG002")
    assert found.severity is Severity.ERROR
    rare = one(findings({"loss": LOSS, "grad_norm": broken(NORM, 300, math.inf, 301)}), "LOG002")
    assert rare.severity is Severity.INFO


def test_a_ramp_before_the_failure() -> None:
    norm = [value * (1.15 ** max(0, index - 270)) for index, value in enumerate(NORM)]
    found = one(findings({"loss": broken(LOSS, 300), "grad_norm": broken(norm, 300)}), "LOG003")
    assert found.evidence["from_step"] < 290 and found.evidence["high"] > 5 * found.evidence["low"]
    calm = findings({"loss": broken(LOSS, 300), "grad_norm": broken(NORM, 300)})
    assert [finding.code for finding in calm] == ["LOG001"]


def test_one_jump_is_no_ramp() -> None:
    norm = [1000.0 if index == 299 else value for index, value in enumerate(NORM)]
    assert "LOG003" not in codes({"loss": broken(LOSS, 300), "grad_norm": broken(norm, 300)})


def test_updates_that_doubled() -> None:
    update = [3e-3 * (1 + 0.05 * RNG.random()) * (2.5 if index >= 296 else 1) for index in range(N)]
    assert (
        one(findings({"loss": broken(LOSS, 300), "update_ratio": update}), "LOG004").evidence["last"] > 6e-3
    )
    same = [3e-3 * (1 + 0.05 * RNG.random()) for _ in range(N)]
    assert "LOG004" not in codes({"loss": broken(LOSS, 300), "update_ratio": same})


def test_a_spike_with_harm_and_one_without() -> None:
    harmed = [
        value if index < 200 else value * (30 if index == 200 else 4) for index, value in enumerate(LOSS)
    ]
    norm = [500.0 if index == 200 else value for index, value in enumerate(NORM)]
    assert one(findings({"loss": harmed, "grad_norm": norm}), "LOG005").evidence["step"] == 200
    taken = [value * (30 if index == 200 else 1) for index, value in enumerate(LOSS)]
    assert codes({"loss": taken, "grad_norm": norm}) == []


def test_a_scale_that_keeps_falling() -> None:
    scale = [65536.0 if index < 300 else 65536.0 / 2 ** (index - 299) for index in range(N)]
    found = one(findings({"loss": LOSS, "loss_scale": scale}), "LOG006")
    assert found.evidence["since_step"] == 300
    caught = [65536.0 if index < 300 else max(512.0, 65536.0 / 2 ** (index - 299)) for index in range(N)]
    assert codes({"loss": LOSS, "loss_scale": caught}) == []


def test_the_rate_at_the_failure() -> None:
    cycle = [1e-3 * (index / 300 if index < 300 else (N - index) / 100) for index in range(N)]
    assert "rising" in one(findings({"loss": broken(LOSS, 299), "lr": cycle}), "LOG007").message
    restart = [1e-3 * (0.01 if index < 280 else 1) for index in range(N)]
    assert "jumped" in one(findings({"loss": broken(LOSS, 300), "lr": restart}), "LOG007").message
    assert "LOG007" not in codes({"loss": broken(LOSS, 300), "lr": RATE})
    # A log of every tenth step: the warm-up looks like a jump, and the run went through its peak since then.
    coarse = [1e-5 if index == 0 else 1e-4 * min(index, 3 * (30 - index) / 27) for index in range(30)]
    assert "LOG007" not in codes({"loss": broken(LOSS[:30], 17), "lr": coarse})


def test_a_jump_at_a_resume() -> None:
    steps = [*range(250), *range(200, 350)]
    loss = [value if index < 250 else value + 2 for index, value in enumerate(LOSS)]
    found = one(findings({"loss": loss, "lr": RATE}, [float(step) for step in steps]), "LOG008")
    assert found.line == 251 and found.evidence["loss"][1] > 2
    rates = [1e-3 if index < 250 else 5e-3 for index in range(N)]
    again = one(findings({"loss": LOSS, "lr": rates}, [float(step) for step in steps]), "LOG008")
    assert again.cause == "RESUME_LR" and again.evidence["rate"] == (1e-3, 5e-3)


def test_a_filter_that_prints_zero() -> None:
    loss = broken(LOSS, 300, 0.0)
    found = one(findings({"loss": loss, "grad_norm": broken(NORM, 300)}), "LOG009")
    assert found.severity is Severity.ERROR and found.evidence["since_step"] == 300
    assert one(findings({"loss": loss}), "LOG009").severity is Severity.WARNING


def test_a_loss_that_stands_still_with_a_bad_norm() -> None:
    found = one(findings({"loss": broken(LOSS, 300, 1.25), "grad_norm": broken(NORM, 300)}), "LOG009")
    assert "stands still" in found.message


def test_a_gradient_that_is_exactly_zero() -> None:
    assert (
        "exactly 0"
        in one(findings({"loss": LOSS, "grad_norm": broken(NORM, 300, 0.0), "lr": RATE}), "LOG009").message
    )


def test_a_loss_that_never_moved() -> None:
    flat = [math.log(10) * (1 + RNG.gauss(0, 0.002)) for _ in range(1500)]
    found = one(findings({"loss": flat}), "LOG010")
    assert "chance level for 10 classes" in found.message


def test_a_loss_that_diverged() -> None:
    turned = [value if index < 200 else 0.6 * 1.05 ** (index - 200) for index, value in enumerate(LOSS)]
    found = one(findings({"loss": turned}), "LOG011")
    assert 150 < found.evidence["best_step"] < 260


def test_skipped_steps() -> None:
    flags = [float(index % 3 == 0) for index in range(N)]
    assert one(findings({"loss": LOSS, "skipped": flags}), "LOG012").evidence["share"] == pytest.approx(
        1 / 3, abs=0.01
    )
    count = [float(index // 4) for index in range(N)]
    assert one(findings({"loss": LOSS, "skipped_steps": count}), "LOG012").evidence["share"] == pytest.approx(
        0.25, abs=0.01
    )
    assert one(findings({"loss": LOSS, "success_rate": [41.0] * N}), "LOG012").severity is Severity.ERROR


def test_skips_in_a_run_record(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    records: list[dict[str, object]] = [{"event": "start"}]
    records += [
        {"step": s, "loss": 1.0, "grad_norm": 1.0, "action": "skip" if 50 <= s < 62 else "none"}
        for s in range(200)
    ]
    found = one(examine_log(str(json_lines(path, records))).findings, "LOG012")
    assert found.severity is Severity.ERROR and found.evidence["in_a_row"] == 12


def test_a_run_that_was_stopped_before_it_made_an_update(tmp_path: Path) -> None:
    """Ten skips in a row are told however short the record is; its losses are all finite."""
    path = tmp_path / "run.jsonl"
    records: list[dict[str, object]] = [{"event": "start"}]
    records += [
        {"step": s, "loss": 1.0, "grad_norm": 1.0, "action": "skip" if s < 9 else "stop"} for s in range(10)
    ]
    found = one(examine_log(str(json_lines(path, records))).findings, "LOG012")
    assert found.severity is Severity.ERROR and "10 of 10 steps were not applied" in found.message
    assert not examine_log(str(json_lines(path, records[:6]))).findings


def test_a_rate_that_is_not_the_configured_one() -> None:
    config = [ConfiguredLogRate("lr", 1e-4, "config.yaml")]
    log = log_of({"loss": LOSS, "lr": [5e-4 * (1 - index / 800) for index in range(N)]})
    assert one(judge(log, config).findings, "LOG013").evidence["logged"] == 5e-4
    right = log_of({"loss": LOSS, "lr": [1e-4 * min(1, index / 100) for index in range(N)]})
    assert judge(right, config).findings == []
    warming = log_of({"loss": LOSS, "lr": [5e-5 * index / N for index in range(N)]})
    assert judge(warming, config).findings == [], "it is still rising"
    between = log_of({"loss": LOSS, "lr": [0.976e-4 * (1 - index / 800) for index in range(N)]})
    assert judge(between, config).findings == [], "the peak was between two records"
    half = log_of({"loss": LOSS, "lr": [0.5e-4 * (1 - index / 800) for index in range(N)]})
    assert one(judge(half, config).findings, "LOG013")


def test_numbers_that_became_null(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    records: list[dict[str, object]] = [
        {"step": s, "loss": 1.0 + 1 / (s + 1) if s < 80 else None} for s in range(100)
    ]
    assert one(examine_log(str(json_lines(path, records))).findings, "LOG014").line == 81
    sparse: list[dict[str, object]] = [
        {"step": s, "loss": 1 / (s + 1), "val_loss": 0.5 if s % 10 == 0 else None} for s in range(100)
    ]
    assert examine_log(str(json_lines(path, sparse))).findings == []
