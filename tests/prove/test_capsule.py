"""Capsules: plain data that comes back as it was, and nothing else is ever loaded."""

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from stayfinite import Guard
from stayfinite.cli import main
from stayfinite.findings import Incident
from stayfinite.prove import capsule
from stayfinite.prove.patching import DoesNotApply, apply
from stayfinite.prove.step_replay import WrongFactory, step_again


class Marker:
    """Unpickled, it leaves a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path(self.path),)


def test_arguments_come_back(tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    model = nn.Linear(2, 2)
    value = [model, {"x": torch.arange(3.0), "n": (1, 0.1, None)}]
    told = capsule.plain(value, tensors)
    capsule.write(tmp_path / "c", {"kind": "step", "calls": [told]}, {"arguments": tensors}, [__file__])
    kept = capsule.read(tmp_path / "c")
    back = capsule.restored(kept.facts["calls"][0], kept.tensors["arguments"], model)
    assert (
        back[0] is model and back[1]["n"] == (1, 0.1, None) and torch.equal(back[1]["x"], torch.arange(3.0))
    )
    assert capsule.differences(kept.facts) == []


def test_a_pickle_is_refused_and_does_not_run(tmp_path: Path) -> None:
    incident = tmp_path / "0001"
    capsule.write(incident / "capsule", {"kind": "script"}, {}, [])
    assert capsule.read(incident / "capsule").kind == "script"
    poison = pickle.dumps(Marker(str(tmp_path / "it ran")))
    (incident / "incident.json").write_text("{}")
    for name in ("arguments.pt", "state.pkl", "arguments.safetensors", "capsule.json"):
        (incident / "capsule" / name).write_bytes(poison)
        with pytest.raises(capsule.NotPlain):
            capsule.read(incident / "capsule")
        result = CliRunner().invoke(main, ["replay", str(incident)])
        assert result.exit_code == 2
        assert not (tmp_path / "it ran").exists()


def step_facts() -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    return {"kind": "step", "step": 3, "calls": [[]], "python_random": [version, list(numbers), gauss]}


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


HOSTILE: dict[str, Callable[[Path], object]] = {
    "truncated tensors": lambda c: (c / "models.safetensors").write_bytes(b"\xff\xff\x00\x00\x00\x00\x00\x00{"),
    "a header that claims everything": lambda c: (c / "models.safetensors").write_bytes(b"\xff" * 8 + b"{}"),
    "counts beyond the file": lambda c: (c / "models.safetensors").write_bytes(
        (h := b'{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}')
        and len(h).to_bytes(8, "little") + h
    ),
    "JSON that nests for ever": lambda c: (c / "capsule.json").write_text(
        '{"schema":1,"kind":"step","calls":' + deep(200_000) + "}"
    ),
    "no table": lambda c: (c / "capsule.json").write_text("[1, 2]"),
    "no text": lambda c: (c / "capsule.json").write_bytes(b"\xff\xfe\x00"),
    "a link": lambda c: (c / "models.safetensors").symlink_to("/etc/hostname"),
    "a folder": lambda c: (c / "models.safetensors").mkdir(),
    "a program": lambda c: (c / "run.py").write_text("raise SystemExit"),
}  # fmt: skip
WRONG: list[tuple[str, object]] = [
    ("kind", "shell"), ("calls", {"a": 1}), ("calls", "x"), ("sources", ["/etc/passwd"]), ("sources", {"a\0b": "0"}),
    ("sources", {"/etc/passwd": 5}), ("versions", 7), ("python_random", [3, [1, 2], None]), ("python_random", "x"),
    ("python_random", [3, [-1] * 625, None]), ("left_out", 5), ("autocast", {"enabled": True, "dtype": "__import__"}),
    ("training", {"model": "yes"}), ("optimizers", ["SGD"]), ("clip", "1"),
]  # fmt: skip


def refused(incident: Path) -> None:
    result = CliRunner().invoke(main, ["replay", str(incident), "--step", "nowhere:made"])
    assert result.exit_code == 2, result.output
    said = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert len(said) == 1 and "Traceback" not in result.output
    assert not isinstance(result.exception, (RecursionError, MemoryError))


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused_in_one_sentence(what: str, tmp_path: Path) -> None:
    (tmp_path / "incident.json").write_text(
        json.dumps(Incident(step=3, trigger="loss", phase="forward").to_json())
    )
    capsule.write(tmp_path / "capsule", step_facts(), {}, [])
    HOSTILE[what](tmp_path / "capsule")
    refused(tmp_path)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_facts_of_a_wrong_type_are_refused(name: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "incident.json").write_text(
        json.dumps(Incident(step=3, trigger="loss", phase="forward").to_json())
    )
    capsule.write(tmp_path / "capsule", step_facts(), {}, [])
    facts = json.loads((tmp_path / "capsule" / "capsule.json").read_text())
    (tmp_path / "capsule" / "capsule.json").write_text(json.dumps({**facts, name: value}))
    with pytest.raises(capsule.NotPlain):
        capsule.read(tmp_path / "capsule")
    refused(tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        {"$tensor": "gone"},
        {"$tensor": [1]},
        {"$float": 5},
        {"$float": "x"},
        {"$tuple": 3},
        {"$dict": [1]},
        {},
    ],
)
def test_arguments_that_are_damaged_are_refused(call: object) -> None:
    with pytest.raises(capsule.NotPlain):
        capsule.restored([call], {}, nn.Linear(1, 1))


@pytest.mark.parametrize("text", ["{}", "[]", "null", deep(200_000), '{"schema": 1, "birth": 7}', "\x00"])
def test_an_incident_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "incident.json").write_text(text)
    capsule.write(tmp_path / "capsule", step_facts(), {}, [])
    refused(tmp_path)


def test_a_patch_writes_into_python_sources_only(tmp_path: Path) -> None:
    for name, hunk in ((".profile", "@@ -1 +1 @@\n-a\n+b\n"), ("x.py", "@@ -0,0 +1 @@\n+import os\n")):
        (tmp_path / name).write_text("a\n")
        file = str(tmp_path / name)
        with pytest.raises(DoesNotApply):
            apply(f"--- a{file}\n+++ b{file}\n{hunk}")
        assert (tmp_path / name).read_text() == "a\n"


def test_what_is_too_large_is_left_out_and_said(tmp_path: Path) -> None:
    tensors = {"arguments": {"t": torch.zeros(4)}, "models": {"w": torch.zeros(1000)}}
    left = capsule.write(tmp_path / "c", {"kind": "step"}, tensors, [], limit=1000)
    assert len(left) == 1 and left[0].startswith("models: ")
    assert sorted(capsule.read(tmp_path / "c").tensors) == ["arguments"]


def half_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(model(batch).sum(-1)).mean()


def factory() -> tuple[nn.Module, object]:
    return nn.Linear(3, 2), half_loss


def test_a_step_replays_from_its_capsule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAYFINITE_PROVE", "stop")
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.fill_(0.5)
    guard = Guard(
        model, torch.optim.SGD(model.parameters(), 1e-3), run_dir=tmp_path, quiet=True, prove="stop"
    )
    batch = torch.rand(6, 3)
    batch[4] = -50.0
    result = guard.step(half_loss, model, batch)
    assert result.incident is not None and result.incident.birth is not None
    kept = capsule.read(tmp_path / "incidents" / "0001" / "capsule")
    again = step_again(kept, factory)
    assert again is not None and again.birth is not None
    assert (again.birth.op, again.birth.line) == (result.incident.birth.op, result.incident.birth.line)
    assert step_again(kept, factory, sample=4) is not None
    assert step_again(kept, factory, sample=0) is None
    with pytest.raises(WrongFactory, match="another one than in the capsule"):
        step_again(kept, lambda: (nn.Sequential(nn.Linear(3, 2)), half_loss))


def in_half(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().pow(2).mean()


def half_factory() -> tuple[nn.Module, object, torch.optim.Optimizer]:
    model = nn.Linear(3, 2).half()
    return model, in_half, torch.optim.Adam(model.parameters(), 1e-3, foreach=False)


def test_an_update_replays_from_its_capsule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The birth is in the optimizer: its state and settings are in the capsule."""
    monkeypatch.setenv("STAYFINITE_PROVE", "stop")
    model, loss_of, optimizer = half_factory()
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, prove="stop")
    result = guard.step(loss_of, model, torch.zeros(4, 3).half())  # type: ignore[arg-type]
    assert result.incident is not None and result.incident.phase == "optimizer"
    kept = capsule.read(tmp_path / "incidents" / "0001" / "capsule")
    assert (
        kept.facts["optimizers"][0]["kind"] == "Adam"
        and kept.facts["optimizers"][0]["groups"][0]["lr"] == 1e-3
    )
    again = step_again(kept, half_factory)
    assert again is not None and again.phase == "optimizer"
    assert step_again(kept, lambda: half_factory()[:2]) is None
    with pytest.raises(WrongFactory, match="the capsule is of a Adam"):
        step_again(kept, lambda: (*half_factory()[:2], torch.optim.SGD(nn.Linear(1, 1).parameters(), 1.0)))


def test_the_autocast_around_a_step_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAYFINITE_PROVE", "stop")
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, prove="stop")
    with torch.autocast("cpu", torch.float16):
        assert guard.step(in_half, model, torch.ones(4, 3)).applied
        assert guard.step(in_half, model, torch.full((4, 3), 3e5)).incident is not None  # finite in float32
    kept = capsule.read(tmp_path / "incidents" / "0001" / "capsule")
    assert kept.facts["autocast"] == {"device": "cpu", "enabled": True, "dtype": "float16"}
    assert any(name.endswith("/exp_avg_sq") for name in kept.tensors["optimizer"])
    assert step_again(kept, lambda: (nn.Linear(3, 2), in_half)) is not None
    assert step_again(kept, lambda: (nn.Linear(3, 2), in_half), float32=True) is None
