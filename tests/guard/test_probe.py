"""Guard(probe=...): a run whose state is finite and whose forward pass is not; and a look that leaves no trace."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from guard.models import CNN, images
from stayfinite import Guard, Policy, RunStopped
from stayfinite.recover import CheckpointError

NAN = math.nan


def events(guard: Guard, name: str) -> list[dict[str, Any]]:
    lines = (guard.run_dir / "run.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line.get("event") == name]


class Gain(nn.Module):
    """exp(weight) overflows float32 when the weight passes 88.7: finite weights, infinite outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.exp()


def broken(guard_options: dict[str, Any], folder: Path, **kwargs: Any) -> tuple[Gain, Guard]:
    """A gain in float32, trained so fast that one step takes its weight beyond exp's range."""
    torch.manual_seed(0)
    model = Gain()
    x = torch.ones(2, 3)
    guard = Guard(
        model,
        torch.optim.SGD(model.parameters(), 1.0),
        run_dir=folder,
        quiet=True,
        probe=lambda: {"gain": model(x), "largest": float(model.weight.detach().max())},
        **guard_options,
        **kwargs,
    )
    return model, guard


def test_guard_with_a_probe_equals_no_guard_bit_for_bit(tmp_path: Path) -> None:
    batches = images(12)

    def train(guarded: bool) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(3)
        model = CNN()
        average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

        def probe() -> dict[str, Any]:
            model.train()  # batch norm counts and dropout draws: all of it must be put back
            average.eval()
            model.register_buffer("made_by_the_probe", torch.ones(2), persistent=True)
            out = model(batches[0][0]) + average(batches[0][0]) + torch.rand(1)
            model.eval()
            return {"out": out}

        loops: Any = [batches, batches]
        if guarded:
            guard = Guard(
                model, optimizer, ema=average, run_dir=tmp_path, quiet=True, snapshot_every=3, probe=probe
            )
            loops = [guard.watch(batches), guard.watch(batches)]
        for loop in loops:
            for x, y in loop:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                average.update_parameters(model)
        if guarded:
            guard.save(tmp_path / "end.pt")
            assert {e["at"] for e in events(guard, "probe")} == {"epoch", "snapshot", "save"}
        assert model.training and average.training
        return [*model.state_dict().values(), *average.state_dict().values()], torch.get_rng_state()

    (plain, plain_rng), (guarded, guarded_rng) = train(False), train(True)
    assert len(plain) == len(guarded)
    assert all(torch.equal(a, b) for a, b in zip(plain, guarded, strict=True))
    assert torch.equal(plain_rng, guarded_rng)


def test_a_healthy_probe_is_on_record_with_its_range(tmp_path: Path) -> None:
    _, guard = broken({}, tmp_path)
    guard.save(tmp_path / "a.pt")
    (event,) = events(guard, "probe")
    assert event["values"]["gain"] == {"min": 1.0, "max": 1.0, "nan": 0, "inf": 0}
    assert event["values"]["largest"]["max"] == 0.0 and event["at"] == "save"


def test_finite_state_with_an_infinite_forward_is_not_saved(tmp_path: Path) -> None:
    model, guard = broken({}, tmp_path)
    path = guard.save(tmp_path / "good.pt")
    before = path.read_bytes()
    with torch.no_grad():
        model.weight[1] = 100.0
    assert guard.bad_state() == [], "every tensor of the state is finite"
    with pytest.raises(CheckpointError, match="0 NaN and 2 Inf in gain"):
        guard.save(path)
    assert path.read_bytes() == before


def test_a_restore_and_an_epoch_say_that_the_run_is_not_healthy(tmp_path: Path) -> None:
    model, guard = broken({}, tmp_path / "a")
    with torch.no_grad():
        model.weight.fill_(100.0)
    unprobed = Guard(model, torch.optim.SGD(model.parameters(), 1.0), run_dir=tmp_path / "b", quiet=True)
    unprobed.save(tmp_path / "bad.pt")
    guard.restore(tmp_path / "bad.pt")
    (warning,) = events(guard, "warning")
    assert "is restored, but the probe found 0 NaN and 6 Inf in gain" in warning["what"]
    assert not guard.recovery.last_good.available
    for _ in guard.watch([None]):
        pass
    said = [w["what"] for w in events(guard, "warning")]
    assert any(what.startswith("epoch 0 begins, but the probe found") for what in said)
    assert not guard.recovery.last_good.available, "and it does not become a state to go back to"


def test_a_rollback_goes_to_a_copy_whose_forward_was_finite(tmp_path: Path) -> None:
    """Snapshots before every step: without the probe the last one is the state that cannot go forward."""
    model, guard = broken({"snapshot_every": 1, "policy": Policy(spikes="ignore")}, tmp_path)
    x = torch.ones(2, 3)
    for step in range(4):
        push = 100.0 if step == 2 else 0.1  # the update of step 2 is finite, and fatal
        result = guard.step(lambda push=push: -(push * model.weight).sum() + 0 * model(x).sum())
    assert result.applied is False and result.action == "rollback"
    assert float(model.weight.detach().max()) < 1.0
    assert torch.isfinite(model(x)).all()
    assert guard.counters.rolled_back == 1
    assert any("step 3 does not become the last good one" in w["what"] for w in events(guard, "warning"))
    assert guard.save(tmp_path / "after.pt").exists()


def test_a_stopped_run_leaves_a_checkpoint_that_goes_forward(tmp_path: Path) -> None:
    model, guard = broken({"policy": Policy(spikes="ignore", max_rollbacks=0)}, tmp_path)
    x = torch.ones(2, 3)
    guard.step(lambda: -(100.0 * model.weight).sum() + 0 * model(x).sum())
    with pytest.raises(RunStopped) as stopped:
        guard.step(lambda: model(x).sum())
    assert stopped.value.checkpoint is not None
    saved = torch.load(stopped.value.checkpoint, weights_only=True)
    assert torch.equal(saved["model"]["weight"], torch.zeros(3))


def test_a_probe_that_raises_on_nan_counts_as_unhealthy(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)

    def probe() -> Tensor:
        return torch.distributions.Normal(model.weight, 1.0).sample()  # validates: raises on NaN

    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), run_dir=tmp_path, quiet=True, probe=probe)
    guard.save(tmp_path / "a.pt")
    with torch.no_grad():
        model.weight.fill_(NAN)
    with pytest.raises(CheckpointError, match="the probe raised ValueError"):
        guard.save(tmp_path / "b.pt")


def test_a_wrong_probe_is_said_at_once(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match="probe"):
        Guard(model, optimizer, run_dir=tmp_path / "a", quiet=True, probe=model.weight)  # type: ignore[arg-type]
    for wrong, message in (("text", "it gave str"), ({"a": {"b": None}}, "a.b gave NoneType")):
        guard = Guard(
            model, optimizer, run_dir=tmp_path / message, quiet=True, probe=lambda wrong=wrong: wrong
        )
        with pytest.raises(TypeError, match=message):
            guard.save(tmp_path / "x.pt")
    assert model.training


def test_under_autocast_a_look_does_not_cut_off_the_gradients(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    guard = Guard(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        run_dir=tmp_path,
        quiet=True,
        probe=lambda: model(torch.ones(1, 4)),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guard.save(tmp_path / "a.pt")
        loss = model(torch.ones(1, 4)).float().sum()
    loss.backward()
    assert model.weight.grad is not None and float(model.weight.grad.sum()) == 16.0
