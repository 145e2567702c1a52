"""Capsules: plain data that comes back as it was, and nothing else is ever loaded."""

import pickle
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from stayfinite import Guard
from stayfinite.cli import main
from stayfinite.prove import capsule
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
