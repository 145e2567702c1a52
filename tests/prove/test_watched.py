"""Proof of a watched loop: its body is run again in a child, as a remedy has it; the training is as it was."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard
from stayfinite.findings import Incident
from stayfinite.sandbox.fork import obstacle

pytestmark = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


@pytest.fixture(autouse=True)
def _proofs_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAYFINITE_PROVE", raising=False)


class Training:
    """A model under guard, and everything of it that a proof must not change."""

    def __init__(self, folder: Path, bad: int = 4) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.1), nn.Linear(6, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.guard = Guard(self.model, self.optimizer, run_dir=folder, quiet=True, prove_limit=200.0)
        self.batches = [torch.randn(8, 4) for _ in range(7)]
        self.batches[bad][2] = 1e6  # the softmax of one sample has a probability of 0

    @property
    def incident(self) -> Incident:
        found = self.guard.run_dir / "incidents" / "0001" / "incident.json"
        return Incident.from_json(json.loads(found.read_text()))

    def everything(self) -> list[Tensor]:
        moments = [v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        found = [*self.model.parameters(), *self.model.buffers(), *moments, torch.get_rng_state()]
        return [tensor.detach().clone() for tensor in found]


def inline(train: Training) -> None:
    """All of it in the loop itself."""
    for x in train.guard.watch(train.batches):
        train.optimizer.zero_grad()
        p = torch.softmax(train.model(x), -1)
        loss = -(p * torch.log(p)).sum(-1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(train.model.parameters(), 1.0)
        train.optimizer.step()


def entropy(logits: Tensor) -> Tensor:
    p = torch.softmax(logits, -1)
    return -(p * torch.log(p)).sum(-1).mean()


def enumerated(train: Training) -> int:
    """A loss function of its own, a counter, and a way out."""
    last = 0
    for i, x in enumerate(train.guard.watch(train.batches)):
        loss = entropy(train.model(x))
        train.optimizer.zero_grad()
        loss.backward()
        train.optimizer.step()
        last = i
        if i > 100:
            return i
    return last


def accumulated(train: Training) -> None:
    """Two micro-batches an update."""
    for i, x in enumerate(train.guard.watch(train.batches[1:])):
        losses = [entropy(train.model(x)) / 2 for _ in range(1)]
        sum(losses).backward()  # type: ignore[union-attr]
        if i % 2 == 1:
            train.optimizer.step()
            train.optimizer.zero_grad()


@pytest.mark.parametrize(
    "loop",
    [
        enumerated,
        pytest.param(inline, marks=pytest.mark.long),
        pytest.param(accumulated, marks=pytest.mark.long),
    ],
)
def test_a_watched_loop_is_proved(loop: Callable[[Training], object], tmp_path: Path) -> None:
    train = Training(tmp_path)
    loop(train)
    incident = train.incident
    assert incident.birth is not None and incident.birth.op == "aten.log.default"
    tried = {one.remedy: one for one in incident.tried}
    assert tried["log-space"].verdict == "proved", (incident.tried, incident.proof_remark)
    assert incident.tried[0].remedy == "log-space" and incident.tried[0].steps == 1
    assert tried["log-floor"].verdict in ("no gradient", "distorts")
    assert (
        incident.patch is not None
        and "log_softmax" in incident.patch
        and Path(__file__).name in incident.patch
    )
    assert incident.blame == "data"
    assert not any(one.proved for one in incident.tried if one.control)
    if loop is inline:
        assert incident.birth.samples == (2,) and tried["dropped-samples"].verdict == "no gradient"


@pytest.mark.parametrize("loop", [inline, pytest.param(enumerated, marks=pytest.mark.long)])
def test_the_training_is_as_without_a_proof(
    loop: Callable[[Training], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(3)
    proved = Training(tmp_path / "a")
    loop(proved)
    drawn = random.getstate()
    monkeypatch.setenv("STAYFINITE_PROVE", "off")
    random.seed(3)
    plain = Training(tmp_path / "b")
    loop(plain)
    assert proved.incident.tried and not plain.incident.tried
    assert all(torch.equal(a, b) for a, b in zip(proved.everything(), plain.everything(), strict=True))
    assert drawn == random.getstate()


def asked_by_hand(train: Training) -> None:
    batches = iter(train.guard.watch(train.batches))
    while (x := next(batches, None)) is not None:
        loss = entropy(train.model(x))
        train.optimizer.zero_grad()
        loss.backward()
        train.optimizer.step()


def test_what_cannot_be_run_again_is_said(tmp_path: Path) -> None:
    train = Training(tmp_path)
    asked_by_hand(train)
    incident = train.incident
    assert not incident.tried and "no `for` statement" in incident.proof_remark
    assert "guard.step(fn, batch)" in incident.proof_remark


@pytest.mark.long
def test_a_sick_state_is_blamed(tmp_path: Path) -> None:
    """Weights that are sick since the last update: any batch fails in them, and this one does not in the copy."""
    train = Training(tmp_path, bad=0)
    train.batches[0] = torch.randn(8, 4)
    for x in train.guard.watch(train.batches):
        train.optimizer.zero_grad()
        loss = train.model(x).pow(2).mean()
        loss.backward()
        train.optimizer.step()
        if train.guard.counters.applied == 3:
            with torch.no_grad():
                train.model[2].weight.mul_(1e30)
    tried = {one.remedy: one for one in train.incident.tried}
    assert train.incident.blame == "state" and tried["rolled-back"].verdict == "proved", train.incident.tried
