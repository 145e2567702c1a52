"""`stayfinite doctor` from the outside: text, JSON, the page, exit codes, wrong usage, Ctrl-C."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import preloaded
from cli.running import bytes_read
from doctor.small_project import PROBE, make_project, train
from stayfinite.cli import main


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_project(tmp_path_factory.mktemp("failed") / "project", lr="5.0", steps=32)
    train(folder)
    (folder / "check.py").write_text(PROBE)
    return folder


def test_the_answer_ends_with_a_plan(failed: Path) -> None:
    done = doctor(failed)
    assert done.exit_code == 1
    assert "the last checkpoint before the trouble is" in done.output
    plan = done.output.partition("\nPlan\n")[2]
    assert "lr: 5.0 -> 2.5" in plan
    assert f"stayfinite run {failed / 'train.py'} --config {failed / 'config.yaml'} --resume" in plan


def test_json_is_one_document_with_the_runs_and_the_plan(failed: Path, tmp_path: Path) -> None:
    target = tmp_path / "doctor.json"
    assert doctor(failed, "--format", "json", "--output", target).exit_code == 1
    data = json.loads(target.read_text())
    assert data["schema"] == 1 and data["findings"] and data["plan"]
    (run,) = data["project"]["runs"]
    assert run["failure"]["to_end"] is True
    assert run["last_good"]["step"] == 4
    assert [saved["healthy"] for saved in run["checkpoints"]]
    assert doctor(failed, "--format", "json", "--output", target).exit_code == 1  # over our own report


def test_the_text_report_may_be_written_again(failed: Path, tmp_path: Path) -> None:
    for arguments in ([], ["--checklist"], ["--before-resume", str(failed / "runs/config/step_0004.pt")]):
        target = tmp_path / "doctor.txt"
        code = doctor(failed, *arguments, "--output", target).exit_code
        first = target.read_text()
        again = doctor(failed, *arguments, "--output", target)
        assert again.exit_code == code != 2, again.output
        assert first.startswith("stayfinite doctor: ")
        target.unlink()
    (tmp_path / "notes.txt").write_text("mine")
    assert doctor(failed, "--output", tmp_path / "notes.txt").exit_code == 2
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("question", [[], ["--checklist"], ["--before-resume", "CKPT"]])
def test_the_page_is_whole_and_escapes_what_it_shows(
    question: list[str], failed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "<script>alert(1)</script>"
    shutil.copytree(failed, folder)
    words = [str(folder / "runs/config/step_0004.pt") if word == "CKPT" else word for word in question]
    page = tmp_path / "doctor.html"
    doctor(folder, *words, "--html", page)
    text = page.read_text()
    assert text.rstrip().endswith("</html>") and "<script>alert(1)" not in text and "&lt;script&gt;" in text
    assert doctor(folder, *words, "--html", page).exit_code != 2  # over our own page
    page.write_text("mine")
    assert doctor(folder, *words, "--html", page).exit_code == 2
    assert page.read_text() == "mine"


def test_before_a_resume_go_and_no_go(failed: Path, tmp_path: Path) -> None:
    good, bad = failed / "runs/config/step_0004.pt", failed / "runs/config/step_0032.pt"
    done = doctor(failed, "--before-resume", bad, "--format", "json")
    data = json.loads(done.stdout)
    assert done.exit_code == 1 and data["verdict"] == "no-go" and data["reasons"]
    calm = make_project(tmp_path / "calm", steps=8)
    train(calm)
    done = doctor(calm, "--before-resume", calm / "runs/config/step_0008.pt")
    assert done.exit_code == 0 and "GO: nothing speaks against it" in done.output
    elsewhere = tmp_path / "copy.pt"
    shutil.copy(good, elsewhere)
    assert doctor(calm, "--before-resume", elsewhere).exit_code in (0, 1)
    assert doctor(calm, "--before-resume", tmp_path / "none.pt").exit_code == 2
    (tmp_path / "text.pt").write_text("no checkpoint")
    assert doctor(calm, "--before-resume", tmp_path / "text.pt").exit_code == 1


@pytest.mark.long  # probing itself: tests/doctor/test_model_probe.py
def test_a_probe_runs_only_when_it_is_named(failed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(failed, tmp_path / "p"))
    (folder / "runs/config/log.jsonl").unlink()
    (folder / "check.py").write_text(PROBE + f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    doctor(folder)
    assert not (tmp_path / "ran").exists()
    data = json.loads(doctor(folder, "--probe", f"{folder / 'check.py'}:values", "--format", "json").stdout)
    assert (tmp_path / "ran").exists()
    (run,) = data["project"]["runs"]
    assert any(saved["dead"] for saved in run["checkpoints"])
    assert run["last_good"]["step"] < 20
    wrong = doctor(folder, "--probe", f"{folder / 'check.py'}:nothing")
    assert wrong.exit_code == 2 and "nothing" in wrong.stderr


def test_wrong_usage_is_one_sentence(failed: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        ([tmp_path / "none"], "no such folder"),
        ([failed / "train.py"], "name the folder"),
        ([tmp_path / "empty"], "nothing here could be read"),
        ([failed, "--checklist", "--before-resume", "x"], "one at a time"),
    ):
        done = doctor(*arguments)
        assert done.exit_code == 2 and said in done.output, done.output
        assert "Traceback" not in done.output


def test_select_and_ignore(failed: Path) -> None:
    done = doctor(failed, "--select", "LOG", "--format", "json")
    assert {finding["code"][:3] for finding in json.loads(done.stdout)["findings"]} == {"LOG"}


def test_ctrl_c_gives_what_was_read(failed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(failed, tmp_path / "p"))
    line = '{"step": 1, "loss": 1.0, "grad_norm": 2.0, "lr": 0.1}\n'
    with (folder / "zz.jsonl").open("w") as handle:
        for _ in range(60):
            handle.write(line * 50_000)
    process = preloaded.start([sys.executable, "-m", "stayfinite", "doctor", str(folder), "--budget", "0"])
    while process.poll() is None and bytes_read(process.pid) < 40_000_000:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    if process.returncode == 130:  # it was still reading
        assert "interrupted: this is what was read so far" in out
