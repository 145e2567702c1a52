"""`stayfinite report` as a person calls it: on a real run that failed, on wrong folders, on two runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from report.written_runs import full_run, step_line, write_lines
from stayfinite import Guard
from stayfinite.cli import main


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *(str(argument) for argument in arguments)])


def test_a_real_run_that_failed(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), run_dir=tmp_path / "run", quiet=True)
    batches = [torch.ones(4, 3)] * 6
    batches[4] = torch.full((4, 3), -1.0)

    for x in batches:
        guard.step(lambda x=x: (model(x) * 0 + x.mean()).log().sum())
    guard.close()

    own = (tmp_path / "run" / "incidents" / "0001" / "report.html").read_text(encoding="utf-8")
    assert "(model(x) * 0 + x.mean()).log().sum()" in own and "log-of-negative" in own
    stored = json.loads((tmp_path / "run" / "incidents" / "0001" / "incident.json").read_text())
    histogram = stored["birth"]["inputs"][0]["histogram"]
    assert sum(histogram["negative"]) == 4 and histogram["positive"] == []

    result = report(tmp_path / "run")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Step 4: the loss is not finite" in page and "6 steps on record: 5 applied, 1 skipped." in page

    result = report(tmp_path / "run" / "incidents" / "0001", "--output", tmp_path / "one.html")
    assert result.exit_code == 0 and str(tmp_path / "one.html") in result.output
    assert "Step 4: the loss is not finite" in (tmp_path / "one.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("where", ["nowhere", "", "empty"])
def test_a_wrong_folder_is_one_sentence_and_exit_code_2(tmp_path: Path, where: str) -> None:
    (tmp_path / "empty").mkdir()
    result = report(tmp_path / where)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*.html"))


def test_no_folder_at_all_is_wrong_usage() -> None:
    result = report()
    assert result.exit_code == 2 and "name the folder of a run" in result.stderr


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    write_lines(tmp_path / "run", [step_line(0)])
    (tmp_path / "taken").write_text("a file, no folder")
    result = report(tmp_path / "run", "--output", tmp_path / "taken" / "page.html")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr and "choose another --output" in result.stderr


def test_two_runs_in_one_page(tmp_path: Path) -> None:
    full_run(tmp_path / "before", steps=450)
    write_lines(tmp_path / "after", [step_line(i) for i in range(450)])
    result = report("--compare", tmp_path / "before", tmp_path / "after", "--output", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "before and after compared" in page and "The first refused step is step 400 of before." in page


def test_the_files_of_a_run_may_be_named_too(tmp_path: Path) -> None:
    full_run(tmp_path / "run", steps=450)
    for name in ("run.jsonl", "incidents/0001/incident.json"):
        result = report(tmp_path / "run" / name, "--output", tmp_path / "page.html")
        assert result.exit_code == 0, result.output


def test_neither_torch_nor_numpy_is_loaded(tmp_path: Path) -> None:
    run = full_run(tmp_path / "run", steps=450)
    code = (
        "import sys\nfrom stayfinite.cli import main\n"
        f"try:\n    main(['report', {str(run)!r}])\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "assert not {'torch', 'numpy', 'starlette'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (run / "report.html").exists()
