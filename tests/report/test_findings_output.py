"""What every command with findings shares: selection, and text that keeps to a screen."""

from __future__ import annotations

import json

import pytest

from stayfinite.findings import Finding, Severity
from stayfinite.report import render
from stayfinite.report.selection import codes, selected
from stayfinite.report.text import lines, tally


def finding(code: str, level: Severity = Severity.ERROR, **more: object) -> Finding:
    return Finding(
        code, f"name-of-{code.lower()}", "LOG_DOMAIN", level, f"message of {code}", "do this", **more
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("select", "ignore", "left"),
    [
        ("", "", ["CKP001", "CKP002", "NUM001"]),
        ("CKP", "", ["CKP001", "CKP002"]),
        ("", "CKP", ["NUM001"]),
        ("CKP", "CKP001", ["CKP002"]),
        ("CKP001", "CKP", ["CKP001"]),
        ("name-of-num001", "", ["NUM001"]),
        ("ckp002, num", "", ["CKP002", "NUM001"]),
    ],
)
def test_selection(select: str, ignore: str, left: list[str]) -> None:
    every = [finding("CKP001"), finding("CKP002"), finding("NUM001")]
    assert [f.code for f in selected(every, codes(select), codes(ignore))] == left


def test_text_is_worst_first_and_short() -> None:
    many = [finding("CKP014", Severity.INFO), finding("CKP006", Severity.WARNING)] + [finding("CKP001")] * 200
    text = [line.plain for line in lines(many, room=20)]
    assert len(text) <= 21
    assert text[0].split()[:2] == ["error", "CKP001"]
    assert any("more of CKP001" in line for line in text)
    assert len(lines(many, everything=True)) > 200
    assert tally(many) == "200 errors, 1 warning, 1 note"


def test_formats() -> None:
    found = [finding("CKP001", file="a.py", line=3, evidence={"value": float("nan")})]
    assert json.loads(render(found, "json"))["findings"][0]["evidence"] == {"value": "nan"}
    result = json.loads(render(found, "sarif"))["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 3}
    assert render(found, "github") == (
        "::error title=CKP001 name-of-ckp001,file=a.py,line=3::message of CKP001. What to do: do this"
    )
    with pytest.raises(ValueError, match="no format 'xml'"):
        render(found, "xml")
