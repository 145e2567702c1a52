"""The five training systems of examples/: lint names the family of the true cause before any training."""

from __future__ import annotations

from pathlib import Path

import pytest

from stayfinite.lint.examine import lint
from stayfinite.lint.settings import Settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("temi_clustering", {("SRC007", "loss.py")}),
        ("mhc_ocr", {("SRC004", "model.py"), ("SRC027", "model.py")}),
        ("latent_dlm", {("CFG013", "config.yaml")}),
        ("radiodiff", {("CFG003", "config.yaml"), ("CFG009", "config.yaml")}),
        ("fp16_distillation", {("CFG002", "config.yaml"), ("SRC003", "loss.py"), ("SRC029", "train.py")}),
    ],
)
def test_the_true_cause_is_named(system: str, expected: set[tuple[str, str]]) -> None:
    found = {(f.code, Path(f.file or "").name) for f in lint([str(EXAMPLES / system)], Settings()).findings}
    assert expected <= found


def test_the_keys_without_effect_of_latent_dlm() -> None:
    report = lint([str(EXAMPLES / "latent_dlm")], Settings())
    keys = {
        f.evidence["key"]
        for f in report.findings
        if f.code == "CFG013" and (f.file or "").endswith("/config.yaml")
    }
    assert {"qk_rmsnorm", "n_heads", "beta1", "beta2", "text_weight", "latent_weight"} <= keys
    cured = [f for f in report.findings if f.code == "CFG013" and (f.file or "").endswith("cured.yaml")]
    assert cured == []


def test_the_cure_of_a_setting_is_silent() -> None:
    for system, code in (("radiodiff", "CFG003"), ("fp16_distillation", "CFG002")):
        found = lint([str(EXAMPLES / system)], Settings()).findings
        assert not [f for f in found if f.code == code and (f.file or "").endswith("cured.yaml")]
