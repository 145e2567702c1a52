"""What the whole of a guarded run shows when it is closed: found where a run failed silently, and nothing else."""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from stayfinite import Guard

Body = Callable[[], torch.Tensor]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return tmp_path / "run"


def findings(run_dir: Path) -> list[dict[str, Any]]:
    """On record, at warning level or above."""
    lines = [json.loads(line) for line in (run_dir / "run.jsonl").read_text().splitlines()]
    found = [line["finding"] for line in lines if line.get("event") == "finding"]
    return [finding for finding in found if finding["severity"] != "info"]


def codes(run_dir: Path) -> set[str]:
    return {finding["code"] for finding in findings(run_dir)}


def inverse_root(step: int) -> float:
    return (4 / max(4, step + 1)) ** 0.5


def fit(guard: Guard, net: nn.Module, opt: torch.optim.Optimizer, steps: int, schedule: Any = None) -> None:
    """An ordinary loop under watch."""
    for _ in guard.watch(range(steps)):
        x = torch.randn(16, 8)
        loss = (net(x) - x[:, :1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if schedule is not None:
            schedule.step()


# -- found


@pytest.mark.parametrize("style", ["step", "watch"])
def test_updates_that_rounding_swallows(run_dir: Path, style: str, caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Linear(8, 1).bfloat16()
    with torch.no_grad():
        net.weight.fill_(2.0)
        net.bias.fill_(2.0)
    opt = torch.optim.SGD(net.parameters(), 1e-5)

    def loss() -> torch.Tensor:
        return (net(torch.randn(16, 8).bfloat16()) - 1).float().pow(2).mean()

    with caplog.at_level(logging.WARNING, "stayfinite"), Guard(net, opt, run_dir=run_dir) as guard:
        if style == "step":
            for _ in range(40):
                guard.step(loss)
        else:
            for _ in guard.watch(range(40)):
                opt.zero_grad()
                loss().backward()
                opt.step()
    assert "STA002" in codes(run_dir) or any("BF16_PRECISION" in str(f) for f in findings(run_dir))
    assert any("bfloat16" in record.message for record in caplog.records)


def test_a_learning_rate_that_a_new_schedule_replaced(run_dir: Path) -> None:
    net = nn.Linear(8, 1)
    opt = torch.optim.AdamW(net.parameters(), 1e-2)
    schedule = LambdaLR(opt, inverse_root)
    for _ in range(60):
        opt.zero_grad()
        net(torch.randn(16, 8)).pow(2).mean().backward()
        opt.step()
        schedule.step()
    saved = copy.deepcopy({"net": net.state_dict(), "opt": opt.state_dict()})
    net = nn.Linear(8, 1)
    opt = torch.optim.AdamW(net.parameters(), 1e-2)
    with Guard(net, opt, run_dir=run_dir) as guard:
        net.load_state_dict(saved["net"])
        opt.load_state_dict(saved["opt"])
        schedule = LambdaLR(opt, inverse_root, -1)
        schedule.last_epoch = 60
        fit(guard, net, opt, 12, schedule)
    (found,) = [f for f in findings(run_dir) if f["cause"] == "RESUME_LR"]
    assert "LambdaLR(opt, inverse_root, -1)" in Path(__file__).read_text().splitlines()[found["line"] - 1]


def test_moments_left_out_of_a_checkpoint(run_dir: Path, tmp_path: Path) -> None:
    def new_run() -> tuple[nn.Module, torch.optim.Optimizer]:
        net = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 1))
        return net, torch.optim.Adam(net.parameters(), 3e-2, betas=(0.9, 0.99))

    net, opt = new_run()
    again, optimizer = new_run()
    with Guard([net, again], [opt, optimizer], run_dir=run_dir) as guard:
        fit(guard, net, opt, 300)
        torch.save({"net": net.state_dict()}, tmp_path / "part.pt")
        again.load_state_dict(torch.load(tmp_path / "part.pt")["net"])
        fit(guard, again, optimizer, 15)
    assert any(f["cause"] == "RESUME_STATE_MISSING" for f in findings(run_dir))


def test_a_schedule_of_epochs_stepped_by_batch(run_dir: Path) -> None:
    net = nn.Linear(8, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    with Guard(net, opt, CosineAnnealingLR(opt, T_max=6), run_dir=run_dir) as guard:
        for _ in range(240):
            x = torch.randn(16, 8)
            guard.step(lambda x: (net(x) - x[:, :1]).pow(2).mean(), x)
    assert any(f["cause"] == "CONFIG_MISTAKE" for f in findings(run_dir))


def test_replicas_that_drift(run_dir: Path) -> None:
    first = nn.Linear(3, 1)
    nets = [first, copy.deepcopy(first)]
    opts = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
    with Guard(nets, opts, run_dir=run_dir) as guard:
        for number in guard.watch(range(18)):
            for net, opt in zip(nets, opts, strict=True):
                opt.zero_grad()
                net(torch.randn(4, 3)).pow(2).mean().backward()
            for pair in zip(*(net.parameters() for net in nets), strict=True):
                mean = torch.stack([p.grad for p in pair if p.grad is not None]).mean(0)
                for p in pair:
                    p.grad = mean.clone()
            for rank, opt in enumerate(opts):
                if rank == 0 or number not in (5, 11):
                    opt.step()
    assert any(f["cause"] == "DIST_DESYNC" for f in findings(run_dir))


def test_an_optimizer_stepped_past_its_scaler(run_dir: Path) -> None:
    net = nn.Linear(8, 1)
    opt = torch.optim.SGD(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Guard(net, opt, scaler=scaler, run_dir=run_dir) as guard:
        for _ in guard.watch(range(8)):
            opt.zero_grad()
            scaler.scale(net(torch.randn(16, 8)).pow(2).mean()).backward()
            scaler.step(opt)
            opt.step()
            scaler.update()
    assert "STA027" in codes(run_dir) or any("scaler" in f["message"] for f in findings(run_dir))


# -- silent


def healthy_loop(net: nn.Module, opt: torch.optim.Optimizer) -> Body:
    def loss() -> torch.Tensor:
        x = torch.randn(16, 8)
        with torch.autocast("cpu", torch.float16):
            made = net(x)
        return (made.float() - x[:, :1]).pow(2).mean()

    return loss


def linear(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


def plain() -> Iterator[Any]:
    net = linear()
    yield net, torch.optim.Adam(net.parameters(), 1e-2), {}


def warmup() -> Iterator[Any]:
    net = linear()
    opt = torch.optim.SGD(net.parameters(), 1e-2)
    schedule = SequentialLR(opt, [LinearLR(opt, 0.1, 1.0, 10), CosineAnnealingLR(opt, 60)], [10])
    yield net, opt, {"scheduler": schedule}


def scaled() -> Iterator[Any]:
    net = linear()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=8)
    yield net, torch.optim.SGD(net.parameters(), 1e-3), {"scaler": scaler}


def averaged() -> Iterator[Any]:
    net = linear()
    ema = torch.optim.swa_utils.AveragedModel(net)
    yield net, torch.optim.AdamW(net.parameters(), 1e-3), {"ema": ema}


def half() -> Iterator[Any]:
    net = nn.Linear(8, 1).bfloat16()
    yield net, torch.optim.SGD(net.parameters(), 0.1), {}


@pytest.mark.parametrize("make", [plain, warmup, scaled, averaged, half])
@pytest.mark.parametrize("style", ["step", "watch"])
def test_healthy_runs_are_silent(
    run_dir: Path, make: Callable[[], Iterator[Any]], style: str, caplog: pytest.LogCaptureFixture
) -> None:
    net, opt, more = next(make())
    dtype = next(net.parameters()).dtype
    scaler, schedule, ema = more.get("scaler"), more.get("scheduler"), more.get("ema")

    def loss() -> torch.Tensor:
        x = torch.randn(16, 8, dtype=dtype)
        with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
            made = net(x)
        return (made.float() - x[:, :1].float()).pow(2).mean()

    with caplog.at_level(logging.WARNING, "stayfinite"):
        with Guard(net, opt, run_dir=run_dir, **more) as guard:
            if style == "step":
                for _ in range(70):
                    guard.step(loss)
            else:
                for _ in guard.watch(range(70)):
                    opt.zero_grad()
                    value = loss()
                    (scaler.scale(value) if scaler is not None else value).backward()
                    if scaler is not None:
                        scaler.unscale_(opt)
                    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                    if scaler is not None:
                        scaler.step(opt)
                        scaler.update()
                    else:
                        opt.step()
                    if schedule is not None:
                        schedule.step()
                    if ema is not None:
                        ema.update_parameters(net)
    expected = {"STA004", "STA002", "STA003"} if dtype is torch.bfloat16 else set()  # of the start, and true
    assert codes(run_dir) <= expected
    assert not [r for r in caplog.records if not any(code in r.message for code in expected)]


def test_a_whole_resume_through_the_guard_is_silent(run_dir: Path, tmp_path: Path) -> None:
    def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any, Any]:
        net = linear()
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        return net, opt, CosineAnnealingLR(opt, 100), torch.amp.GradScaler("cpu", init_scale=1024.0)

    net, opt, schedule, scaler = parts()
    with Guard(net, opt, schedule, scaler, run_dir=tmp_path / "first") as guard:
        for _ in range(20):
            guard.step(healthy_loop(net, opt))
        guard.save(tmp_path / "state.pt")
    net, opt, schedule, scaler = parts()
    with Guard(net, opt, schedule, scaler, run_dir=run_dir) as guard:
        guard.restore(tmp_path / "state.pt")
        for _ in range(20):
            guard.step(healthy_loop(net, opt))
        assert guard.step_count == 40
    assert codes(run_dir) == set()


def test_refusals_and_a_rollback_are_no_resume(run_dir: Path) -> None:
    net = linear()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = CosineAnnealingLR(opt, 200)
    with Guard(net, opt, schedule, run_dir=run_dir, snapshot_every=10, quiet=True) as guard:
        for number in range(60):
            x = torch.randn(16, 8) * (float("nan") if 20 <= number < 28 else 1.0)
            guard.step(lambda x: net(x).pow(2).mean(), x)
        assert guard.counters.rollbacks == 1
    resumed = ("RESUME_LR", "RESUME_STATE_MISSING")
    assert not [f for f in findings(run_dir) if f["cause"] in resumed]


# -- whose an event is


def test_another_model_a_second_guard_and_another_thread_change_nothing(tmp_path: Path) -> None:
    def run(folder: Path, beside: Callable[[], None]) -> list[str]:
        net = linear(3)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        with Guard(net, opt, run_dir=folder, quiet=True) as guard:
            torch.manual_seed(5)
            data = torch.randn(12, 16, 8)
            for x in guard.watch(data):
                beside()
                opt.zero_grad()
                (net(x) - x[:, :1]).pow(2).mean().backward()
                opt.step()
            seen = guard._maintenance._run.observers
            facts = [
                seen.optimizers.facts(),
                seen.scalers.facts(),
                seen.clips.facts(),
                seen.schedulers.facts(),
            ]
            facts += [
                seen.resumes.facts(),
                seen.optimizers.load_events(),
                seen.module_loads,
                seen.history.recent,
            ]
        return [str(fact) for fact in facts]

    def other() -> None:
        """Everything that a guard listens to, of somebody else."""
        net = nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        schedule = LambdaLR(opt, inverse_root)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(net(torch.ones(3, 2)).sum()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        schedule.step()
        net.load_state_dict(copy.deepcopy(net).state_dict())
        opt.load_state_dict(opt.state_dict())

    def in_a_thread() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    def guarded() -> None:
        net = nn.Linear(2, 1)
        with Guard(
            net, torch.optim.SGD(net.parameters(), 1e-2), run_dir=tmp_path / "second", quiet=True
        ) as guard:
            guard.step(lambda: net(torch.ones(3, 2)).sum())

    alone = run(tmp_path / "alone", lambda: None)
    for name, beside in (("other", other), ("thread", in_a_thread), ("guarded", guarded)):
        assert run(tmp_path / name, beside) == alone, name


def test_nothing_stays_patched_and_nothing_is_kept_alive(tmp_path: Path, alone: bool) -> None:
    if not alone:
        return
    import gc
    import weakref

    watched = [
        (torch.amp.GradScaler, "step"),
        (torch.nn.Module, "load_state_dict"),
        (copy, "deepcopy"),
        (torch, "save"),
        (F, "binary_cross_entropy_with_logits"),
    ]
    before = [getattr(owner, name) for owner, name in watched]
    net = linear()
    guard = Guard(net, torch.optim.SGD(net.parameters(), 1e-2), run_dir=tmp_path / "a", quiet=True)
    assert [getattr(owner, name) for owner, name in watched] != before
    guard.close()
    assert [getattr(owner, name) for owner, name in watched] == before
    guard = Guard(net, torch.optim.SGD(net.parameters(), 1e-2), run_dir=tmp_path / "b", quiet=True)
    gone = weakref.ref(guard)
    del guard, net
    gc.collect()
    assert gone() is None
    assert [getattr(owner, name) for owner, name in watched] == before


def test_a_compiled_model_takes_no_notice(tmp_path: Path) -> None:
    net = nn.Linear(8, 1)
    opt = torch.optim.SGD(net.parameters(), 1e-2)

    @torch.compile(backend="eager", fullgraph=True)
    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(net(x), (x[:, :1] > 0).float())

    with Guard(net, opt, run_dir=tmp_path / "run", quiet=True) as guard:
        for _ in range(8):
            assert guard.step(loss, torch.randn(16, 8)).applied
