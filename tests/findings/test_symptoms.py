"""Every symptom leads to rules and commands that exist."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner

from stayfinite.cli import main
from stayfinite.findings import find_rule
from stayfinite.findings.symptoms import SYMPTOMS, Symptom, find_symptom


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=[symptom.name for symptom in SYMPTOMS])
def test_codes_and_commands_exist(symptom: Symptom) -> None:
    assert len(symptom.suspects) >= 3
    for suspect in symptom.suspects:
        assert suspect.codes and all(find_rule(code) is not None for code in suspect.codes), suspect
        program, command, *arguments = shlex.split(suspect.command)
        found = main.get_command(main.make_context("stayfinite", ["--help"], resilient_parsing=True), command)
        assert program == "stayfinite" and found is not None, suspect.command
        options = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= options, suspect.command


def test_names_are_unique() -> None:
    assert len({symptom.name for symptom in SYMPTOMS}) == len(SYMPTOMS)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("few batches", "few-batches"), ("a few batches are NaN", "few-batches"), ("sudden jump", "sudden-jump"),
        ("certain heads", "certain-heads"), ("first batch", "first-batch"), ("NaN at step 0", "first-batch"),
        ("after a resume", "after-resume"), ("loss 0.0", "loss-zero"), ("!!!!", "exclamation-marks"),
        ("output is !!!!!!", "exclamation-marks"), ("grad norm nan", "norm-nan"), ("frist-batch", "first-batch"),
    ],
)  # fmt: skip
def test_symptoms_are_found_by_what_people_say(text: str, name: str) -> None:
    found = find_symptom(text)
    assert found is not None and found.name == name


def test_on_the_command_line() -> None:
    run = CliRunner()
    listed = run.invoke(main, ["explain", "--symptom"])
    assert listed.exit_code == 0 and all(symptom.name in listed.output for symptom in SYMPTOMS)
    shown = run.invoke(main, ["explain", "--symptom", "loss", "0.0"])
    assert shown.exit_code == 0 and "LOG009 failure-hidden-by-log" in shown.output and "1. " in shown.output
    assert run.invoke(main, ["explain", "--symptom", "xyzzy"]).exit_code == 2
    assert run.invoke(main, ["explain"]).exit_code == 2
    assert run.invoke(main, ["explain", "NUM001"]).exit_code == 0
