"""Go or no-go: what speaks against a resume, each alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from doctor.small_project import make_project
from doctor.test_doctor import examined
from stayfinite.checkpoint import verify
from stayfinite.doctor.code_changes import code_since
from stayfinite.doctor.resume import ResumeCheck, check_resume
from stayfinite.doctor.runs import run_of
from stayfinite.findings.advice import CheckedItem, Status


def checked(folder: Path, name: str) -> ResumeCheck:
    verdict = verify(folder / "runs/config" / name)
    found, project, _, _ = examined(folder)
    return check_resume(found, run_of(project, verdict), verdict)


def item(check: ResumeCheck, title: str) -> CheckedItem:
    return next(one for one in check.items if one.title == title)


def test_a_healthy_run_may_go_on(healthy: Path) -> None:
    check = checked(healthy, "step_0040.pt")
    assert check.go and check.reasons == []
    rate = item(check, "learning rate, old and new")
    assert rate.status is Status.DONE and "0.02" in rate.detail
    assert item(check, "optimizer moments").status is Status.DONE
    assert item(check, "gradient scaler").status is Status.NOT_APPLICABLE


def test_a_lower_rate_in_the_configuration_would_not_act(healthy: Path) -> None:
    config = healthy / "config.yaml"
    config.write_text(config.read_text().replace("0.02", "0.001"))
    check = checked(healthy, "step_0040.pt")
    assert not check.go
    rate = item(check, "learning rate, old and new")
    assert rate.status is Status.MISSING and "0.02" in rate.detail and "0.001" in rate.detail
    script = healthy / "train.py"
    text = script.read_text()
    after = '    for group in optimizer.param_groups:\n            group["lr"] = config["lr"]\n'
    script.write_text(text.replace("    out = Path", after + "    out = Path"))
    assert item(checked(healthy, "step_0040.pt"), "learning rate, old and new").status is Status.UNKNOWN


def test_a_failed_run_needs_a_change_first(diverged: Path) -> None:
    check = checked(diverged, "step_0004.pt")
    assert not check.go and any("will fail again" in reason for reason in check.reasons)
    assert item(check, "written before the failure").status is Status.DONE
    config = diverged / "config.yaml"
    config.write_text(config.read_text() + "# looked at\n")
    assert (
        item(checked(diverged, "step_0004.pt"), "something changed since the failure").status is Status.DONE
    )


def test_not_from_inside_the_failure(skipping: Path) -> None:
    check = checked(skipping, "step_0040.pt")
    inside = item(check, "written before the failure")
    assert not check.go and inside.status is Status.MISSING and "step_0004.pt" in inside.detail


@pytest.mark.parametrize(
    ("part", "title"),
    [
        ("optimizer", "checkpoint is complete"),
        ("scheduler", "checkpoint is complete"),
        ("nan", "checkpoint is whole and finite"),
        ("cut", "checkpoint is whole and finite"),
        ("scale", "gradient scaler"),
    ],
)
def test_what_is_missing_or_broken_in_the_checkpoint(part: str, title: str, healthy: Path) -> None:
    path = healthy / "runs/config/step_0040.pt"
    state = torch.load(path, weights_only=True)
    if part == "nan":
        state["model"]["weight"][0, 1] = float("nan")
    elif part == "scale":
        state["scaler"] = {"scale": 2.0**-20, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
                           "_growth_tracker": 0}  # fmt: skip
    elif part != "cut":
        del state[part]
    torch.save(state, path)
    if part == "cut":
        path.write_bytes(path.read_bytes()[:-400])
    check = checked(healthy, "step_0040.pt")
    assert not check.go
    assert item(check, title).status is Status.MISSING


def git(folder: Path, *command: str, when: str | None = None) -> None:
    names = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when} if when else {}
    subprocess.run(
        ["git", "-C", str(folder), *command],
        check=True,
        capture_output=True,
        env={**os.environ, **names, **dates},
    )


def test_code_since_by_git_and_by_file_times(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    script = str(folder / "train.py")
    old = 1_700_000_000.0
    for path in folder.iterdir():
        os.utime(path, (old, old))
    assert code_since(str(folder), old + 10, [script]).files == []
    os.utime(script, (old + 20, old + 20))
    by_time = code_since(str(folder), old + 10, [script])
    assert by_time.by == "file times" and by_time.files == [script]
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first", when=f"@{int(old)} +0000")
    (folder / "train.py").write_text((folder / "train.py").read_text() + "# later\n")
    git(folder, "commit", "-qam", "a later change", when=f"@{int(old) + 100} +0000")
    os.utime(script, (old, old))  # a copy need not keep times: git knows all the same
    by_git = code_since(str(folder), old + 10, [script])
    assert by_git.by == "git" and by_git.files == [script] and by_git.added == 1
    assert [commit.partition(" ")[2] for commit in by_git.commits] == ["a later change"]
    assert code_since(str(folder), old + 200, [script]).files == []


def test_a_repository_cannot_make_the_doctor_run_anything(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path / 'sprung'}\ncat\n")
    trap.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "diff.external",
        "diff.evil.textconv",
        "filter.evil.clean",
        "gpg.program",
        "core.pager",
    ):
        git(folder, "config", key, str(trap))
    git(folder, "config", "log.showSignature", "true")
    (folder / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    (folder / "train.py").write_text("x = 1\n")
    code_since(str(folder), 1_700_000_000.0, [str(folder / "train.py")])
    code_since(str(folder), 4_000_000_000.0, [str(folder / "train.py")])
    assert not (tmp_path / "sprung").exists()
