"""Broken, huge, binary, empty, cyclic and vanishing input: named, passed over, and the rest is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from doctor.small_project import make_project
from doctor.test_doctor import examined
from stayfinite.doctor.probe import FunctionProbe, WrongProbe

NAMES = ("config.yaml", "train.py", "log.jsonl", "trainer_state.json", "step_10.pt", "model.safetensors", "data.npz",
         "train.csv", "features.parquet", "events.out.tfevents.1", "run.wandb", "run.sh", "incident.json", "Makefile",
         "nohup.out", "notes.txt", "hparams.json", "settings.toml", "ckpt.bin", "labels.npy")  # fmt: skip
CONTENTS = {
    "empty": b"",
    "zeros": b"\0" * 5000,
    "binary": bytes(range(256)) * 40,
    "not UTF-8": b"lr: \xff\xfe\nloss \xe9 1.0\n" * 50,
    "cut zip": b"PK\x03\x04" + b"\x14\x00" * 30,
    "deep": b"[" * 60_000,
    "long line": b"loss " + b"9" * 400_000,
    "pickle": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_every_kind_of_file_may_be_broken(kind: str, tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    broken = folder / "broken"
    (broken / "shared").mkdir(parents=True)
    for name in NAMES:
        alone = name not in (
            "trainer_state.json",
            "model.safetensors",
        )  # these make one checkpoint of a folder
        ((broken if alone else broken / "shared") / name).write_bytes(CONTENTS[kind])
    found, _, findings, _ = examined(folder)
    assert found.lint.sources >= 1 and found.lint.configs  # the good ones are read all the same
    named = " ".join([*found.passed_over, *(str(f.file) for f in findings)])
    assert "step_10.pt" in named and "log.jsonl" in named and "model.safetensors" in named


def test_links_in_circles_pipes_and_dead_links(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    (folder / "again").symlink_to(folder, target_is_directory=True)
    (folder / "runs").mkdir()
    (folder / "runs" / "up").symlink_to("..", target_is_directory=True)
    (folder / "gone.jsonl").symlink_to(folder / "nowhere.jsonl")
    (folder / "self.pt").symlink_to(folder / "self.pt")
    os.mkfifo(folder / "pipe.log")
    ours, theirs = os.openpty()  # reading from a terminal would wait
    (folder / "terminal.log").symlink_to(os.ttyname(theirs))
    (folder / "kernel.log").symlink_to("/proc/kmsg")
    found, _, _, _ = examined(folder)
    os.close(ours)
    os.close(theirs)
    assert found.lint.sources == 1
    assert found.logs == []


def test_deep_trees_end(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    place = folder
    for _ in range(60):
        place = place / "d"
        place.mkdir()
    (place / "log.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    found, _, _, _ = examined(folder)
    assert found.lint.sources == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [("nofile.py:check", "no file"), ("nofunction", "name a file"), ("x.txt:check", "name a file")],
)
def test_a_probe_that_does_not_exist(text: str, said: str) -> None:
    with pytest.raises(WrongProbe, match=said):
        FunctionProbe.parse(text)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no such layer')", "no such layer"),
        ("import os; os._exit(3)", "without an answer"),
        ("import time; time.sleep(60)", "no answer within"),
        ("return 'many'", "could not convert"),
    ],
)
def test_a_probe_that_fails_says_so(body: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(f"def values(path):\n    {body}\n")
    probe = FunctionProbe.parse(f"{tmp_path / 'check.py'}:values", seconds=5)
    with pytest.raises(WrongProbe, match=said):
        probe("x.pt")
