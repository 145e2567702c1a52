"""`stayfinite probe module:factory`: real processes, clear errors, a report for people and one for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stayfinite.cli import main

SOURCE = """
import torch
from torch import nn

def healthy():
    torch.manual_seed(0)
    return nn.Linear(4, 2), (torch.randn(6, 4), torch.randint(2, (6,))), nn.CrossEntropyLoss()

def failing():
    torch.manual_seed(0)
    return nn.Linear(4, 2), torch.randn(6, 4), lambda m, x: (m(x) / x.amax(1, keepdim=True)).pow(2).mean()

def raising():
    raise RuntimeError("no data here")

def empty():
    return None

def three_numbers():
    return 1, 2, 3

def bad_keys():
    return {"model": nn.Linear(1, 1), "data": 3}

constant = 3
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    name = f"probed_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(function: str, *options: str, module: str = name) -> Result:
        return CliRunner().invoke(main, ["probe", f"{module}:{function}", "--budget", "0.2", *options])

    return run


def test_a_healthy_model(probe) -> None:  # type: ignore[no-untyped-def]
    result = probe("healthy")
    assert result.exit_code == 0, result.output
    assert result.output.count("\npass    ") == 6 and "nothing found" in result.output
    assert "not reachable within the range and budget" in result.output


def test_a_failing_model_and_the_test_it_prints(probe) -> None:  # type: ignore[no-untyped-def]
    result = probe("failing")
    assert result.exit_code == 1
    assert "PRB014" in result.output and "fail    edge cases" in result.output
    assert "def test_stays_finite() -> None:" in result.output


def test_json_and_a_file(probe, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = probe("failing", "--format", "json", "--output", "report.json")
    assert result.exit_code == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["schema"] == 1
    assert {f["code"] for f in report["findings"]} >= {"PRB014"}
    assert [b["name"] for b in report["batteries"]] == [
        "forward",
        "loss",
        "gradient",
        "stability",
        "edge",
        "search",
    ]
    assert report["search"][0]["found"] is True and "torch" in report["search"][0]["test"]


def test_only_one_battery(probe) -> None:  # type: ignore[no-untyped-def]
    result = probe("failing", "--only", "gradient")
    assert result.exit_code == 0 and "edge cases" not in result.output


@pytest.mark.parametrize(
    ("function", "module", "said"),
    [
        ("nothing", None, "has no function 'nothing'; it has bad_keys, empty"),
        ("make", "no_such_module", "there is no module 'no_such_module'"),
        ("make", "no/such.py", "there is no file no/such.py"),
        ("raising", None, "raised RuntimeError: no data here"),
        ("empty", None, "it returned a NoneType; return (model, batch, loss)"),
        ("three_numbers", None, "the model must be a torch.nn.Module; it is a int"),
        ("bad_keys", None, "the dict does not know data"),
        ("constant", None, "is a int, not a function"),
    ],
)
def test_wrong_factories_end_with_one_sentence(probe, function: str, module: str | None, said: str) -> None:  # type: ignore[no-untyped-def]
    result = probe(function, **({"module": module} if module else {}))
    assert result.exit_code == 2
    assert said in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("text", ["1", "3:1", "a:b", "1:1"])
def test_a_wrong_range(probe, text: str) -> None:  # type: ignore[no-untyped-def]
    assert probe("healthy", "--range", text).exit_code == 2


def test_a_module_that_cannot_be_imported(probe, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "broken_one.py").write_text("import there_is_no_such_thing\n")
    result = probe("make", module="broken_one")
    assert result.exit_code == 2 and "there_is_no_such_thing" in result.output
    (tmp_path / "ending_one.py").write_text("raise SystemExit(3)\n")
    result = probe("make", module="ending_one")
    assert result.exit_code == 2 and "ended the program" in result.output
