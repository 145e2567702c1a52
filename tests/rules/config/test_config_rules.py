"""Each configuration rule fires on the planted line of the bad file, and nothing fires on its good twin."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.config.twins import TWINS, Twin
from stayfinite.findings import Finding, Severity, all_rules
from stayfinite.findings.subjects.config_file import ConfigFile, ConfigSet
from stayfinite.lint.examine import lint
from stayfinite.lint.settings import Settings


def findings(folder: Path, files: dict[str, str]) -> list[Finding]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    report = lint([str(folder)], Settings())
    assert report.unreadable == []
    assert report.configs
    return [finding for finding in report.findings if finding.code.startswith("CFG")]


@pytest.mark.parametrize("twin", TWINS, ids=[f"{twin.code}-{twin.what}" for twin in TWINS])
def test_the_fault_is_found_on_its_line(twin: Twin, tmp_path: Path) -> None:
    found = [(f.code, Path(f.file or "").name, f.line) for f in findings(tmp_path, twin.bad)]
    assert (twin.code, Path(twin.file).name, twin.line) in found
    assert len(found) <= 2, "at most one other finding"


@pytest.mark.parametrize("twin", TWINS, ids=[f"{twin.code}-{twin.what}" for twin in TWINS])
def test_the_healthy_twin_is_silent(twin: Twin, tmp_path: Path) -> None:
    assert [(f.code, f.line, f.message) for f in findings(tmp_path, twin.good)] == []


def test_every_configuration_rule_has_a_twin() -> None:
    codes = {rule.code for rule in all_rules() if rule.subject_type() in (ConfigFile, ConfigSet)}
    assert codes == {twin.code for twin in TWINS}


def test_a_threshold_of_the_project_decides(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("lr: 1.0e-4\nteacher_temperature: 0.03\n", encoding="utf-8")
    assert [f.code for f in lint([str(tmp_path)], Settings()).findings] == ["CFG004"]
    looser = Settings(thresholds={"teacher-temperature-floor": 0.02})
    assert lint([str(tmp_path)], looser).findings == []


def test_a_column_points_at_the_key_in_every_format(tmp_path: Path) -> None:
    texts = {
        "a.yaml": "optim:\n  lr: 1.0e-4\n  ema_decay: 1.5\n",
        "b.json": '{"optim": {"lr": 1e-4,\n   "ema_decay": 1.5}}',
        "c.toml": "[optim]\nlr = 1e-4\n  ema_decay = 1.5\n",
        "d_config.py": "lr = 1e-4\nbatch_size = 3\noptim = {'x': 1, 'ema_decay': 1.5}\n",
    }
    places = {}
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        (finding,) = lint([str(path)], Settings()).findings
        assert finding.line is not None and finding.column is not None
        places[name] = text.splitlines()[finding.line - 1][finding.column - 1 :]
    assert all(rest.lstrip("'\"").startswith("ema_decay") for rest in places.values()), places


def test_a_file_that_hydra_brings_in_may_write_1e_5(tmp_path: Path) -> None:
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "adam.yaml").write_text("lr: 1e-5\nweight_decay: 0.1\n", encoding="utf-8")
    main = tmp_path / "config.yaml"
    main.write_text("defaults:\n  - optim: adam\nmax_steps: 100\n", encoding="utf-8")
    assert lint([str(tmp_path)], Settings()).findings == []
    main.unlink()
    assert [f.code for f in lint([str(tmp_path)], Settings()).findings] == ["CFG001"]


@pytest.mark.parametrize(
    ("reads", "level"),
    [
        ('float(cfg["lr"])', Severity.INFO),
        ('float(cfg.get("lr", 1e-3))', Severity.INFO),
        ('cfg["lr"]', Severity.ERROR),
        ('float(cfg["lr"]), cfg["lr"] * 2', Severity.ERROR),
        ('float(cfg["rate"])', Severity.ERROR),
    ],
)
def test_a_text_of_which_the_source_makes_a_number_is_a_note(
    tmp_path: Path, reads: str, level: Severity
) -> None:
    (tmp_path / "config.yaml").write_text("lr: 1e-3\nmax_steps: 100\n", encoding="utf-8")
    script = f"import yaml\ncfg = yaml.safe_load(open('config.yaml'))\nprint({reads}, cfg['max_steps'])\n"
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    (finding,) = [f for f in lint([str(tmp_path)], Settings()).findings if f.code == "CFG001"]
    assert finding.severity is level
