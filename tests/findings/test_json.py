"""The JSON of findings and incidents is a contract: exact keys, a loss-free round trip, valid for every number."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfinite.findings import (
    Birth,
    Finding,
    Incident,
    PathStep,
    Proof,
    Severity,
    TensorSummary,
    as_float,
    dumps,
    jsonable,
    worst_first,
)

FINDING_KEYS = [
    "code", "name", "cause", "severity", "file", "line", "column", "message", "evidence", "fix", "patch",
    "proof",
]  # fmt: skip
INCIDENT_KEYS = [
    "schema", "step", "phase", "trigger", "reproduced", "rank", "world_size", "birth", "path", "history", "findings",
    "action", "environment",
]  # fmt: skip
BIRTH_KEYS = [
    "op", "call", "file", "line", "source", "function", "module", "kind", "nan", "inf", "numel", "first_index",
    "dtype", "samples", "inputs",
]  # fmt: skip
TENSOR_KEYS = ["name", "shape", "dtype", "min", "max", "zeros", "nan", "inf"]
PROOF_KEYS = ["remedy", "finite", "loss", "distortion", "tried"]


def a_finding(**changes: Any) -> Finding:
    facts: dict[str, Any] = {
        "code": "NUM001",
        "name": "log-of-zero",
        "cause": "LOG_DOMAIN",
        "severity": Severity.ERROR,
        "message": "log of 3 zeros",
        "fix": "use log_softmax",
        "file": "train.py",
        "line": 41,
        "evidence": {"zeros": 3, "worst": -math.inf, "nested": {"values": [1.0, math.nan, math.inf]}},
        "patch": "--- a\n+++ b\n",
        "proof": Proof("log-space", True, 2.31, 0.0, 4),
    }
    return Finding(**{**facts, **changes})


def an_incident() -> Incident:
    tensor = TensorSummary("self", (4, 64), "float32", 0.0, 0.91, zeros=3)
    birth = Birth(
        "aten.log.default", "torch.log", "train.py", 41, "loss = -p.log().mean()", "kd_loss", "model.head.3",
        "inf", 0, 3, 256, (0, 17), "float32", (17,), (tensor,),
    )  # fmt: skip
    return Incident(
        step=68,
        phase="forward",
        trigger="loss",
        reproduced=True,
        birth=birth,
        path=[PathStep("aten.neg.default", "train.py", 41, None)],
        history=[{"step": 67, "loss": 0.5}, {"step": 68, "loss": math.nan, "lr": [0.1]}],
        findings=[a_finding(), a_finding(proof=None, patch=None, file=None, line=None)],
        action="skip",
        environment={"torch": "2.13.0", "deterministic": False},
    )


def test_the_keys_are_exactly_the_contract() -> None:
    data = an_incident().to_json()
    assert list(data) == INCIDENT_KEYS
    watched = an_incident()
    watched.observed = [TensorSummary("alpha", (2,), "float32", min=0.1, max=0.2)]
    assert list(watched.to_json()) == [
        *INCIDENT_KEYS,
        "observed",
    ]  # only where somebody asked to watch something
    assert data["schema"] == 1
    birth, findings = data["birth"], data["findings"]
    assert isinstance(birth, dict) and isinstance(findings, list)
    assert list(birth) == BIRTH_KEYS
    assert isinstance(birth["inputs"], list) and list(birth["inputs"][0]) == TENSOR_KEYS
    assert list(findings[0]) == FINDING_KEYS
    assert list(findings[0]["proof"]) == PROOF_KEYS
    assert findings[1]["proof"] is None
    assert list(data["path"][0]) == ["op", "file", "line", "module"]  # type: ignore[index,call-overload,arg-type]


def test_an_incident_survives_the_round_trip() -> None:
    text = dumps(an_incident().to_json())
    back = Incident.from_json(json.loads(text))
    assert dumps(back.to_json()) == text
    original = an_incident()
    assert (back.birth, back.path, back.step, back.action) == (
        original.birth, original.path, original.step, original.action,
    )  # fmt: skip
    assert back.findings[0].proof == original.findings[0].proof
    assert back.findings[0].severity is Severity.ERROR


def test_a_proof_that_is_not_finite_comes_back_as_numbers() -> None:
    written = json.loads(dumps(a_finding(proof=Proof("clamp", False, math.nan, math.inf)).to_json()))
    assert written["proof"]["loss"] == "nan"
    proof = Finding.from_json(written).proof
    assert proof is not None and proof.loss is not None
    assert math.isnan(proof.loss)
    assert proof.distortion == math.inf


def test_an_incident_of_another_schema_is_refused() -> None:
    data = {**an_incident().to_json(), "schema": 2}
    with pytest.raises(ValueError, match=r"schema 2.*reads 1"):
        Incident.from_json(data)


def test_non_finite_numbers_become_words() -> None:
    assert jsonable([math.nan, math.inf, -math.inf, 1.5]) == ["nan", "inf", "-inf", 1.5]
    assert jsonable({"p": Path("a/b"), 3: (1, {2})}) == {"p": "a/b", "3": [1, [2]]}


@settings(derandomize=True, max_examples=100, deadline=None, database=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_everything_is_valid_json(value: Any) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = dumps(value)
    assert json.loads(text.encode(), parse_constant=refuse) == jsonable(value)


def test_text_that_utf8_cannot_hold_is_escaped() -> None:
    """A file name with undecodable bytes reaches Python as lone surrogates."""
    name = b"train\xff.py".decode("utf-8", "surrogateescape")
    text = dumps(a_finding(file=name).to_json())
    assert json.loads(text.encode("utf-8"))["file"] == name


@given(st.floats(allow_nan=False))
@settings(derandomize=True, max_examples=100, deadline=None, database=None)
def test_numbers_come_back(value: float) -> None:
    assert as_float(jsonable(value)) == value


def test_what_is_no_number_is_none() -> None:
    assert [as_float(value) for value in (None, True, "seven", [1.0])] == [None] * 4
    assert math.isnan(as_float("nan") or 0.0)


def test_the_worst_comes_first() -> None:
    findings = [
        a_finding(code="A", severity=Severity.INFO, depth=0),
        a_finding(code="B", severity=Severity.ERROR, depth=3),
        a_finding(code="C", severity=Severity.ERROR, depth=1),
        a_finding(code="D", severity=Severity.WARNING, depth=0),
    ]
    assert [f.code for f in worst_first(findings)] == ["C", "B", "D", "A"]
