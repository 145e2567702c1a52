"""When there is a second run, what it finds, and what is said if it does not come to the failing step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import preloaded
from stayfinite.findings import Finding, Incident, Severity
from stayfinite.launch import file_changes, second_run
from stayfinite.launch.beginning import Beginning
from stayfinite.launch.file_changes import FileChanges
from stayfinite.launch.options import Options
from stayfinite.sandbox import support
from stayfinite.sandbox.process import ProcessResult

FAILING = """
    import os, sys, time
    import torch
    from torch import nn

    {before}
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(4):
        loss = net(torch.randn(8, 4)).pow(2).mean() {bad}
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
NAN = "* (float('nan') if step == 2 else 1)"


def start(folder: Path, before: str, *options: str, bad: str = NAN, **environment: str) -> preloaded.Started:
    source = textwrap.dedent(FAILING).format(before=textwrap.dedent(before).strip(), bad=bad)
    (folder / "train.py").write_text(source, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "stayfinite",
        "run",
        "--format",
        "json",
        "--output",
        "out.json",
        *options,
    ]
    return preloaded.start(
        [*command, "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def run(folder: Path, before: str, *options: str, **more: str) -> tuple[dict[str, Any], str]:
    process = start(folder, before, *options, **more)
    _, said = process.communicate(timeout=300)
    (incident,) = json.loads((folder / "out.json").read_text())["incidents"]
    return incident, said


@pytest.fixture
def sandbox() -> None:
    if support.sandbox().kind == "none":
        pytest.skip(support.sandbox().reason)


def test_a_second_run_that_ends_early_is_no_second_run(tmp_path: Path, sandbox: None) -> None:
    (tmp_path / "big.bin").write_bytes(b"x" * 10)
    incident, said = run(
        tmp_path, "import subprocess; assert os.path.exists('big.bin'); os.system('rm big.bin')"
    )
    assert incident["reproduced"] is None and incident["birth"] is None
    assert incident["not_located"].startswith("the second run ended with AssertionError at train.py:6")
    assert "could not see these files as the first had found them" in said and "big.bin (removed)" in said
    assert "RUN013" not in said and "not seen again" not in said


def test_a_failure_that_does_not_come_again_is_said_to_be_one(tmp_path: Path, sandbox: None) -> None:
    bad = "* (float('nan') if step == 2 and 'STAYFINITE_FIRST' in os.environ else 1)"
    before = "first = open('/proc/1/cmdline').read() if os.getpid() < 50 else ''"
    before = f"{before}\nif os.getpid() > 50: os.environ['STAYFINITE_FIRST'] = '1'"
    if support.sandbox().kind != "namespaces":
        pytest.skip("tells the two runs apart by their numbers")
    incident, said = run(tmp_path, before, bad=bad)
    assert incident["reproduced"] is False
    assert incident["not_located"] == "a second, traced run came through step 2 without a bad value"
    assert "RUN013" in said


@pytest.mark.long
def test_state_that_only_the_second_run_spoilt_is_no_finding(tmp_path: Path, sandbox: None) -> None:
    """The first run refused the step; the second one makes its update, in the sandbox."""
    spoilt = """
        class Spoilt(nn.Linear):
            def __init__(self, *sizes):
                super().__init__(*sizes)
                self.load_state_dict({"weight": torch.full((1, 4), float("nan")), "bias": torch.zeros(1)})
        nn.Linear = Spoilt
        torch.optim.SGD = torch.optim.Adam
    """
    incident, _ = run(tmp_path, spoilt, bad="")
    findings = incident["findings"]
    assert findings[0]["code"] == "STA032"
    told = [t for f in findings for t in f["evidence"].get("tensors", []) if isinstance(t, dict)]
    assert {t["name"] for t in told if "owner" in t} <= {"weight"}


def test_running_statistics_that_a_refusal_put_back_are_not_the_cause(tmp_path: Path, sandbox: None) -> None:
    """An update by signs leaves the weights finite in the second run, which refuses nothing, and the buffers bad."""
    normed = """
    class Normed(nn.Linear):
        def __init__(self, *size):
            super().__init__(*size)
            self.norm = nn.BatchNorm1d(1)
        def forward(self, x):
            if step == 2:
                x = x.clone()
                x[3, 1] = float("inf")
            return self.norm(super().forward(x))
    class Signs(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.add_(p.grad.sign().nan_to_num(), alpha=-0.1)
    nn.Linear, torch.optim.SGD = Normed, Signs
    """
    incident, _ = run(tmp_path, normed, bad="")
    assert [finding["code"] for finding in incident["findings"]] == ["DAT001"]


def test_what_both_runs_counted_is_reported_as_the_first_one_had_it() -> None:
    """A second run refuses nothing: after the first bad update every norm in it is bad."""

    def clipped(times: str) -> Finding:
        message = f"{times} calls clipped by a norm that is not finite"
        return Finding("STA025", "clip-by-bad-norm", "CLIP", Severity.WARNING, message, "", "train.py", 9)

    cause = Finding("DAT001", "batch-not-finite", "DATA", Severity.ERROR, "batch[0] holds 1 NaN", "")
    located = [Incident(1, "forward", "loss", findings=[cause, clipped("50 of 51")])]
    second_run.as_the_first_run_had_it(located, [replace(cause, message="other"), clipped("3 of 60")])
    assert [f.message[:7] for f in located[0].findings] == ["batch[0", "3 of 60"]


def test_what_failed_on_a_course_that_the_first_run_did_not_take_is_left_out() -> None:
    """The first run refused steps 1 to 3 for their loss. The second one made the update of step 1."""
    found = [
        Incident(step, "forward", trigger)
        for step, trigger in (
            (0, "parameter"),
            (1, "loss"),
            (1, "gradient"),
            (1, "parameter"),
            (2, "parameter"),
            (3, "loss"),
            (4, "exception"),
        )
    ]
    refused = {1: "loss", 2: "loss", 3: "loss"}
    left = [(one.step, one.trigger) for one in second_run.on_the_same_course(found, refused)]
    assert left == [(0, "parameter"), (1, "loss"), (1, "gradient"), (3, "loss")]
    assert second_run.on_the_same_course(found, {}) == found


def test_a_loss_that_an_update_made_bad_is_none_of_a_run_that_refused_the_update() -> None:
    """Both runs have a bad loss in steps 1 and 2: the first of the same data again, the second of its update."""
    phases = ((1, "forward"), (1, "backward"), (2, "forward"), (2, "backward"), (2, "state"))
    found = [Incident(step, phase, "loss") for step, phase in phases]
    left = second_run.on_the_same_course(found, {1: "loss", 2: "loss"})
    assert [(one.step, one.phase) for one in left] == [(1, "forward"), (1, "backward"), (2, "forward")]


def test_without_a_sandbox_there_is_none_unless_allowed(tmp_path: Path) -> None:
    before = "open('runs.txt', 'a').write('x')"
    incident, said = run(tmp_path, before, STAYFINITE_SANDBOX="none")
    assert incident["reproduced"] is None and "--allow-rerun" in incident["not_located"]
    assert "running the script again" not in said and (tmp_path / "runs.txt").read_text() == "x"
    incident, said = run(tmp_path, before, "--allow-rerun", STAYFINITE_SANDBOX="none")
    assert incident["reproduced"] is True and incident["birth"]["line"] == 10
    assert (tmp_path / "runs.txt").read_text() == "xxx" and "writes and sends again" in said


def test_ctrl_c_ends_the_second_run_and_the_report_comes_all_the_same(tmp_path: Path, sandbox: None) -> None:
    if support.sandbox().kind != "namespaces":
        pytest.skip("tells the two runs apart by their numbers")
    process = start(tmp_path, "if os.getpid() < 50: time.sleep(600)")
    assert process.stderr is not None
    while "running the script again" not in (line := process.stderr.readline()):
        assert line, "it ended"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert "not located: the second run was interrupted" in said
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in found


def test_how_a_second_run_ended_is_a_sentence() -> None:
    failure = second_run.FailurePoint(step=7, seconds=3.0, what="step 7 failed")

    def reason(done: ProcessResult, told: dict[str, Any], reached: bool = False) -> str:
        return second_run._reason(done, told, failure, 600.0, reached)

    finished = ProcessResult("finished", exit_code=1)
    assert reason(ProcessResult("timed out"), {}) == "the second run timed out after 600 s"
    assert reason(ProcessResult("died", signal=9), {}) == "the second run was ended by SIGKILL"
    error = {"step": 3, "error": "FileNotFoundError at train.py:12: no such file"}
    assert (
        reason(finished, error) == "the second run ended with FileNotFoundError at train.py:12: no such file"
    )
    assert reason(finished, {"step": 3, "error": None}).endswith(
        "ended at step 3, before the failing one (7)"
    )
    assert reason(ProcessResult("not started", reason="no room"), {}).endswith(
        "could not be started: no room"
    )
    late = second_run.FailurePoint(step=7, seconds=3600.0, what="step 7 failed")
    told = second_run.obstacle(Options("train.py"), Beginning(), late)
    assert told == "it came 60 min after the start, and a second run may take 10 min (--locate-limit)"


def test_files_that_there_was_no_time_to_list_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk or a busy machine: the list ends in the middle, and nobody knows what was in the other folders."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").write_text("x = 1")
    complete, times = file_changes._list, iter([1])
    monkeypatch.setattr(
        file_changes, "_list", lambda roots, **limits: complete(roots, **{**limits, "most": next(times, 100)})
    )
    changes = FileChanges()
    changes.start([str(tmp_path)])
    try:
        subprocess.run(["touch", str(tmp_path / "made"), str(tmp_path / "package/also")], check=True)
        past, unlike = changes.past()
        assert [os.path.relpath(path, os.path.realpath(tmp_path)) for path in past.missing] == ["made"]
        assert not unlike
    finally:
        changes.close()


RUINED = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 3e7)
for step in range(40):
    loss = (net(torch.randn(8, 4)) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_run_whose_cause_has_a_line_is_not_judged_by_the_end_of_another(tmp_path: Path) -> None:
    """A second run refuses nothing: what it comes to is not where the run of the user stopped."""
    (tmp_path / "train.py").write_text(RUINED)
    command = [sys.executable, "-m", "stayfinite", "run", "--no-prove", "--output", "out.json", "train.py"]
    process = preloaded.start(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, said = process.communicate(timeout=300)
    incidents = json.loads((tmp_path / "out.json").read_text())["incidents"]
    assert incidents[0]["step"] == 1 and incidents[0]["findings"][0]["code"] == "RUN010"
    assert max(incident["step"] for incident in incidents) <= 10
    assert "at the end" not in incidents[0]["findings"][0]["message"]
    assert "running the script again" not in said


PRINTING = """
import os
from stayfinite.launch.file_changes import FileChanges

changes = FileChanges()
changes.start(["."])
print("step 1", flush=True)
os.system("echo step 2")
past, unlike = changes.past()
changes.close()
assert not past.missing and not past.earlier and not unlike, (past, unlike)
"""


def test_where_the_output_goes_is_no_file_of_the_script(tmp_path: Path) -> None:
    with (tmp_path / "train.log").open("w") as log:
        subprocess.run([sys.executable, "-c", PRINTING], cwd=tmp_path, stdout=log, check=True)
    assert (tmp_path / "train.log").read_text() == "step 1\nstep 2\n"


def test_what_happens_to_files_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("kept", "changed", "gone", "moved", "unheard", "tree/a", "tree/b/c"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    with Path("large").open("wb") as handle:
        handle.truncate(65 << 20)
    changes = FileChanges()
    changes.start([str(tmp_path)])
    try:
        import shutil

        Path("changed").write_text("new")
        Path("gone").unlink()
        Path("moved").rename("elsewhere")
        shutil.rmtree("tree")
        Path("made/deep").mkdir(parents=True)
        Path("made/deep/file").write_text("x")
        with Path("large").open("ab") as handle:
            handle.write(b"x")
        subprocess.run(["sh", "-c", "echo x >> unheard; echo y > also-made"], check=True)
        past, unlike = changes.past()
        here = os.path.realpath(tmp_path)
        assert past.missing == [f"{here}/also-made", f"{here}/elsewhere", f"{here}/made"]
        kept = {os.path.relpath(one.path, here): one for one in past.earlier}
        assert set(kept) == {"changed", "gone", "moved", "tree", "tree/a", "tree/b", "tree/b/c"}
        for name in ("changed", "gone", "moved", "tree/a", "tree/b/c"):
            assert Path(kept[name].copy).read_text() == name
        assert [text.removeprefix(here) for text in unlike] == [
            "/large (changed, and too large to keep: 65 MB)",
            "/unheard (changed)",
        ]
    finally:
        changes.close()
    assert not Path(kept["changed"].copy).exists()
