"""What a command writes never takes the place of an input, or of a file that is none of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import preloaded
from stayfinite.cli import main


def scan(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["scan", *map(str, arguments)])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, value in (("good.pt", 1.0), ("bad.pt", float("nan"))):
        torch.save({"model": {"a": torch.full((4,), 1.0), "b": torch.full((4,), value)}}, tmp_path / name)
    (tmp_path / "notes.txt").write_text("mine, with stayfinite in it")
    (tmp_path / "train.py").write_text("import stayfinite  # 1 checkpoint, ")
    (tmp_path / "blob.bin").write_bytes(bytes(range(256)))
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["good.pt", "bad.pt", "notes.txt", "train.py", "blob.bin", "none/out.json"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_report_goes_nowhere_else(place: Path, name: str, form: str) -> None:
    before = contents(place)
    result = scan(place / "bad.pt", "--output", place / name, "--format", form)
    assert result.exit_code == 2 and name in result.output
    assert contents(place) == before


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_a_report_replaces_an_earlier_report(place: Path, form: str) -> None:
    out = place / "report"
    for path in ("good.pt", "bad.pt"):
        assert scan(place / path, "--output", out, "--format", form).exit_code in (0, 1)
    assert "bad.pt" in out.read_text() and "good.pt" not in out.read_text()
    assert {p.name for p in place.iterdir()} == {
        "good.pt", "bad.pt", "notes.txt", "train.py", "blob.bin", "report"
    }  # fmt: skip


def test_a_repair_takes_no_name_that_is_taken(place: Path) -> None:
    (place / "link.pt").symlink_to(place / "nowhere.pt")
    for name in ("good.pt", "bad.pt", "notes.txt", "link.pt"):
        before = contents(place)
        result = scan(place / "bad.pt", "--repair", place / name, "--from", place / "good.pt")
        assert result.exit_code == 1 and "exists already" in result.output
        assert contents(place) == before and (place / "link.pt").is_symlink()


def test_quarantine_leaves_what_is_not_a_checkpoint(place: Path) -> None:
    folder = place / "model"
    folder.mkdir()
    from safetensors.torch import save_file

    save_file({"w": torch.full((3,), float("nan"))}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["X"]}))
    (folder / "thesis.tex").write_text("years of work")
    away = place / "away"
    away.mkdir()
    (away / "model.safetensors").write_text("somebody else's")
    assert scan(folder, "--quarantine", away, "--yes").exit_code == 1
    assert (folder / "thesis.tex").read_text() == "years of work"
    assert not (folder / "model.safetensors").exists()
    assert (away / "model.safetensors").read_text() == "somebody else's"


@pytest.mark.parametrize("where", ["notes.txt", ".", "model/inside"])
def test_quarantine_refuses_a_wrong_place(place: Path, where: str) -> None:
    (place / "model").mkdir()
    torch.save({"w": torch.full((3,), float("nan"))}, place / "model/weights.pt")
    before = contents(place)
    result = scan(place, "--quarantine", place / where, "--yes")
    if where != "model/inside":
        assert result.exit_code == 2, result.output
        assert contents(place) == before
    else:
        assert sorted(contents(place).values()) == sorted(before.values())


def test_the_record_of_a_healthy_run_takes_nothing_with_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        """
import glob, os
import torch
from torch import nn

net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
os.chdir("/")
for step in range(3):
    net(torch.randn(4, 2)).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
os.chdir(os.path.dirname(__file__))
(ours,) = glob.glob("stayfinite-runs/*")
torch.save(net.state_dict(), ours + "/model.pt")
torch.save(net.state_dict(), "stayfinite-runs/model.pt")
""",
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "-m",
        "stayfinite",
        "run",
        "--output",
        "out.json",
        "--format",
        "json",
        "train.py",
    ]
    done = preloaded.run(command, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["model.pt", "model.pt", "out.json", "train.py"]
