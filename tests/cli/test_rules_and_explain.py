"""`stayfinite rules` and `stayfinite explain`: what they print, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from stayfinite import __version__
from stayfinite.cli import main
from stayfinite.findings import CAUSES, all_rules, find_rule
from stayfinite.findings.retired import RETIRED


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_rules_lists_every_rule() -> None:
    result = run("rules")
    assert result.exit_code == 0
    for rule in all_rules():
        assert rule.code in result.output


def test_rules_of_one_family() -> None:
    result = run("rules", "--family", "dat", "--format", "json")
    codes = [rule["code"] for rule in json.loads(result.output)]
    assert codes == [rule.code for rule in all_rules() if rule.code.startswith("DAT")]
    assert "DAT001" in codes


def test_rules_as_json_holds_what_the_rules_say() -> None:
    listed = json.loads(run("rules", "--format", "json").output)
    assert [(r["code"], r["name"], r["severity"], r["cause"], r["summary"]) for r in listed] == [
        (r.code, r.name, r.severity.value, r.cause, r.summary()) for r in all_rules()
    ]


@pytest.mark.parametrize("asked", ["STA003", "sta003", "eps-zero-in-dtype"])
def test_explain_prints_the_whole_page(asked: str) -> None:
    result = run("explain", asked)
    assert result.exit_code == 0
    for part in ("STA003", "eps-zero-in-dtype", "EPS_UNDERFLOW", "What it finds", "The fix", "does not work"):
        assert part in result.output


def test_explain_says_what_replaced_a_retired_code() -> None:
    for old, new in RETIRED.items():
        result = run("explain", old.lower())
        assert result.exit_code == 0
        assert f"{old} is retired: {new}" in result.output
        assert find_rule(old) is None, "a retired code is never used again"
        assert find_rule(new) is not None


@pytest.mark.parametrize("asked", ["STATE_POISONED", "state-poisoned", "state_poisoned"])
def test_explain_takes_a_cause_too(asked: str) -> None:
    result = run("explain", asked)
    assert result.exit_code == 0
    assert "STA011" in result.output


def test_explain_a_cause_that_has_no_rule_says_so() -> None:
    without = sorted(set(CAUSES) - {rule.cause for rule in all_rules()})
    for cause in without[:1]:
        result = run("explain", cause)
        assert result.exit_code == 0
        assert "No rule of this version finds it yet" in result.output


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("STA-003", "STA003"), ("eps-zero-in-dtyp", "eps-zero-in-dtype"), ("log-domian", "LOG_DOMAIN")],
)
def test_a_slip_gets_a_hint(asked: str, meant: str) -> None:
    result = run("explain", asked)
    assert result.exit_code == 2
    assert f"Did you mean {meant}?" in result.output


def test_nothing_alike_gets_no_hint() -> None:
    result = run("explain", "qqqqqq")
    assert result.exit_code == 2
    assert "Did you mean" not in result.output and "stayfinite rules" in result.output


@pytest.mark.parametrize("wrong", [["explain"], ["nonsense"], ["rules", "--family", "XYZ"], ["--no-such"]])
def test_wrong_usage_ends_with_2(wrong: list[str]) -> None:
    assert run(*wrong).exit_code == 2


def test_version_and_help() -> None:
    assert __version__ in run("--version").output
    help_text = run("--help").output
    assert "explain" in help_text and "rules" in help_text and "Exit codes" in help_text


def test_as_a_real_process() -> None:
    command = [sys.executable, "-m", "stayfinite"]
    good = subprocess.run([*command, "explain", "RUN001"], capture_output=True, text=True, check=False)
    assert good.returncode == 0 and "bad-batch-spike" in good.stdout and good.stderr == ""
    bad = subprocess.run([*command, "explain", "bad-batch-spik"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2 and "Did you mean bad-batch-spike?" in bad.stderr and bad.stdout == ""
    piped = subprocess.run([*command, "rules"], capture_output=True, text=True, check=False)
    assert "\x1b[" not in piped.stdout, "no colours in a pipe"
