"""Every kind of fault in every kind of run: nothing non-finite stays in any state, the run goes on and learns,
and the event is on record under its right name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from guard.models import CNN, images
from stayfinite import Guard

STEPS, BAD_STEP = 32, 14
NAN, INF = math.nan, math.inf


class BadOnce(torch.optim.SGD):
    """An optimizer whose own arithmetic goes wrong once, from finite gradients."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        self.calls += 1
        if self.calls == BAD_STEP:
            with torch.no_grad():
                self.param_groups[0]["params"][0].view(-1)[3] = NAN


class Run:
    """A small training with everything in it that can be poisoned."""

    def __init__(self, setting: str, fault: str, value: float, run_dir: Path) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(3)
        self.setting, self.fault, self.value = setting, fault, value
        self.model = CNN()
        self.ema = torch.optim.swa_utils.AveragedModel(self.model, use_buffers=True)
        body, head = list(self.model.features.parameters()), list(self.model.head.parameters())
        make: Callable[..., torch.optim.Optimizer] = BadOnce if fault == "update" else torch.optim.SGD
        groups = [body, head] if setting == "two optimizers" else [body + head]
        self.optimizers = [make(group, lr=0.02, momentum=0.9) for group in groups]
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=256.0) if setting == "amp" or fault == "scale" else None
        )
        self.accumulate = 4 if setting == "accumulation" else 1
        self.data = images(STEPS * self.accumulate, size=32)
        self.guard = Guard(
            self.model, self.optimizers, scaler=self.scaler, ema=self.ema, clip_norm=5.0, run_dir=run_dir,
            accumulate=self.accumulate, check_every=5, snapshot_every=10, quiet=True,
        )  # fmt: skip
        if fault == "gradient":
            self.model.head[2].weight.register_hook(self.spoil_gradient)
        self.now = 0

    def bad_now(self) -> bool:
        return self.now // self.accumulate == BAD_STEP and self.now % self.accumulate == self.accumulate - 1

    def spoil_gradient(self, gradient: Tensor) -> Tensor:
        if not self.bad_now():
            return gradient
        gradient = gradient.clone()
        gradient[2, 5] = self.value
        return gradient

    def loss(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.setting == "amp"):
            logits = self.model(x)
        logits = logits.float()
        parts = {"ce": F.cross_entropy(logits, y), "size": 1e-4 * logits.pow(2).mean()}
        if self.bad_now() and self.fault == "loss":
            parts = {name: part * self.value for name, part in parts.items()}
        if self.bad_now() and self.fault == "component":
            parts["size"] = parts["size"] + self.value
        return parts

    def go(self) -> list[Any]:
        results = []
        for now, (x, y) in enumerate(self.data):
            self.now = now
            if self.bad_now():
                if self.fault == "input":
                    x = x.clone()
                    x[3, 0, 2, 2] = self.value
                if self.fault == "batch norm":
                    x = x * 1e38 * 10  # every value Inf: running statistics are the first to go
                if self.fault == "ema":
                    with torch.no_grad():
                        next(self.ema.parameters()).view(-1)[0] = self.value
                if self.fault == "scale":
                    assert self.scaler is not None
                    self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": 0.0})
            results.append(self.guard.step(lambda x=x, y=y: self.loss(x, y), batch={"image": x, "label": y}))
        return results

    def accuracy(self) -> float:
        self.model.eval()
        hits = [(self.model(x).argmax(1) == y).float().mean() for x, y in images(10, seed=99, size=64)]
        return float(torch.stack(hits).mean())


EXPECTED = {  # fault -> (trigger, what the sentence on record must name)
    "input": ("loss", "['image'] holds"),
    "loss": ("loss", "component ce, size"),
    "component": ("loss", "component size"),
    "gradient": ("gradient", "head.2.weight"),
    "update": ("parameter", "features.0.weight"),
    "batch norm": ("loss", "['image'] holds"),
    "ema": ("parameter", "ema.module.features.0.weight"),
    "scale": ("gradient", "features.0.weight"),
}


VALUES = {"update": [NAN], "batch norm": [INF], "scale": [NAN]}  # where the fault fixes the value itself


SETTINGS = ("plain", "amp", "accumulation", "two optimizers")
CASES = [
    (fault, value, how) for fault in EXPECTED for value in VALUES.get(fault, [NAN, INF]) for how in SETTINGS
]


def is_repetition(fault: str, value: float, setting: str) -> bool:
    """Inf where NaN is put too, in the less simple settings."""
    return fault not in VALUES and value == INF and setting != "plain"


@pytest.mark.parametrize(
    ("fault", "value", "setting"),
    [pytest.param(*case, marks=pytest.mark.long if is_repetition(*case) else ()) for case in CASES],
)
def test_no_fault_stays(tmp_path: Path, fault: str, value: float, setting: str) -> None:
    run = Run(setting, fault, value, tmp_path)
    results = run.go()
    guard = run.guard

    assert guard.bad_state() == []
    for name, tensor in [*run.model.state_dict().items(), *run.ema.state_dict().items()]:
        assert torch.isfinite(tensor).all(), name
    if run.scaler is not None:
        assert run.scaler.get_scale() >= 1.0

    guard.close()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    refused = [line for line in lines if line.get("what") and "event" not in line]
    amp_backoffs = [line for line in lines if line.get("action") == "backoff"]
    trigger, name = EXPECTED[fault]
    if setting == "amp" and fault == "gradient":  # an overflow like any other to the scaler
        assert len(amp_backoffs) == 1 and not refused
        assert guard.counters.backoffs == 1
    elif fault == "ema":  # found by the look at all state, and put back without touching the training
        (repaired,) = [line for line in lines if line.get("event") == "repair"]
        assert name in repaired["what"] and not refused
        written = json.loads((tmp_path / "incidents" / "0001" / "incident.json").read_text())
        assert written["trigger"] == trigger and written["findings"][0]["code"] == "STA011"
    else:
        assert refused, "the event is not on record"
        assert name in refused[0]["what"]
        first = next(r for r in results if r.incident is not None)
        assert first.incident.trigger == trigger or fault == "update"
        written = json.loads((tmp_path / "incidents" / "0001" / "incident.json").read_text())
        assert written["step"] == first.step and written["action"] == first.action
    assert guard.counters.steps == STEPS
    assert guard.counters.applied >= STEPS - 6
    assert run.accuracy() > 0.7


def test_half_adam_is_undone_bit_for_bit(tmp_path: Path) -> None:
    """float16 Adam with eps 1e-8 divides by zero in its first update: caught before the next step and undone."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).half()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, foreach=False)
    before = [p.detach().clone() for p in net.parameters()]
    guard = Guard(net, optimizer, run_dir=tmp_path, policy="skip", quiet=True)
    assert {"STA003", "STA004"} <= {finding.code for finding in guard.audit}
    x, y = torch.randn(32, 8).half() * 0.01, torch.randn(32, 1).half() * 0.01
    result = guard.step(lambda: F.mse_loss(net(x).float(), y.float()), batch=(x, y))
    assert result.applied is False
    assert result.incident is not None and result.incident.phase == "optimizer"
    assert result.incident.findings[0].cause == "PURE_LOWP_OPTIMIZER"
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert len(optimizer.state) == 0  # not even the moments' first entry or the step count is left


def test_a_refused_step_leaves_no_trace(tmp_path: Path) -> None:
    """A run with one bad batch ends with the very bits of a run that never saw that batch."""

    def train(with_bad_batch: bool, way: str) -> list[Tensor]:
        torch.manual_seed(5)
        model = CNN()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=50)
        ema = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        guard = Guard(
            model, optimizer, scheduler, ema=ema, run_dir=tmp_path / f"{with_bad_batch}{way}", quiet=True
        )
        data = images(20)
        if with_bad_batch:
            data.insert(9, (torch.full((16, 1, 8, 8), INF), torch.zeros(16, dtype=torch.long)))
        if way == "step":
            for x, y in data:
                guard.step(lambda x=x, y=y: F.cross_entropy(model(x), y), batch=(x, y))
        else:
            for x, y in guard.watch(data):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 100.0)
                optimizer.step()
                scheduler.step()
                ema.update_parameters(model)
        assert guard.counters.skipped == int(with_bad_batch)
        moments = [v for entry in optimizer.state.values() for v in entry.values()]
        rate = torch.tensor([optimizer.param_groups[0]["lr"], scheduler.last_epoch])
        return [
            *model.parameters(),
            *model.buffers(),
            *ema.parameters(),
            *ema.buffers(),
            *moments,
            rate,
            torch.get_rng_state(),
        ]

    for way in ("step", "watch"):
        for a, b in zip(train(True, way), train(False, way), strict=True):
            assert torch.equal(a, b)
