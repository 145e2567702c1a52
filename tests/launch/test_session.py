"""A session inside one process: what is watched, what counts as a failure, what the script handled itself."""

from __future__ import annotations

import gc
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stayfinite.findings import Incident, Severity
from stayfinite.launch.options import Options
from stayfinite.launch.script import ScriptEnd
from stayfinite.launch.session import Session
from stayfinite.launch.suspicions import Suspicion, Suspicions

Watched = Callable[..., tuple[Session, list[Incident]]]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """Runs a script under a session and returns it with its incidents."""

    def run(source: str, traced: bool = True) -> tuple[Session, list[Incident]]:
        path = tmp_path / "script.py"
        path.write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(source), encoding="utf-8")
        session = Session(Options(str(path), traced=traced))
        torch.manual_seed(0)
        session.start()
        try:
            names = {"__name__": "__main__"}  # alive until the end, as a script's own names are
            exec(compile(path.read_text(), str(path), "exec"), names)
        finally:
            incidents = session.finish(ScriptEnd(0))
        assert not session.tracer.follower.trouble
        return session, incidents

    return run


LOOP = """
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(8):
    x = torch.randn(8, 4)
    if step == {bad}:
        x[0, 0] = float("nan")
    loss = net(x).pow(2).mean()
    {check}
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def errors(incidents: list[Incident]) -> list[Incident]:
    return [i for i in incidents if any(f.severity is Severity.ERROR for f in i.findings)]


def test_a_skipped_bad_batch_is_an_information(watched: Watched) -> None:
    _, incidents = watched(LOOP.format(bad=3, check="if not torch.isfinite(loss): continue"))
    assert not errors(incidents)
    assert [incident.trigger for incident in incidents] == ["loss"]


def test_a_model_that_was_let_go_of_is_not_state_of_the_run(watched: Watched) -> None:
    gc.disable()
    try:
        broken = torch.nn.BatchNorm1d(4)
        broken.running_mean = torch.full((4,), float("nan"))
        broken.cycle = [broken]
        del broken
        _, incidents = watched(LOOP.format(bad=3, check="if not torch.isfinite(loss): continue"))
    finally:
        gc.enable()
    assert [incident.trigger for incident in incidents] == ["loss"]
    assert not errors(incidents)


def test_a_run_that_ends_at_the_bad_batch_failed(watched: Watched) -> None:
    _, incidents = watched(LOOP.format(bad=3, check="if not torch.isfinite(loss): break"))
    assert len(errors(incidents)) == 1
    assert incidents[0].step == 3


def test_one_failure_is_one_incident(watched: Watched) -> None:
    session, incidents = watched(LOOP.format(bad=3, check=""))
    assert len(incidents) == 1
    assert incidents[0].birth is not None and incidents[0].birth.kind == "nan"
    assert session.detector.suspicions.all[0].count > 1
    assert [record["step"] for record in incidents[0].history] == [0, 1, 2, 3]


def test_watching_alone_sees_the_failure_and_asks_for_a_second_run(watched: Watched) -> None:
    session, _ = watched(LOOP.format(bad=3, check=""), traced=False)
    assert session.needs_second_run
    assert session.failing_step == 3
    assert not session.tracer.active
    (unlocated,) = session.unlocated()
    assert unlocated.reproduced is None and unlocated.birth is None


def test_watching_alone_sees_a_loss_that_the_script_only_looks_at(watched: Watched) -> None:
    session, _ = watched(LOOP.format(bad=3, check="if loss.item() != loss.item(): break"), traced=False)
    assert session.needs_second_run


def test_a_healthy_run_needs_no_second_run(watched: Watched) -> None:
    session, incidents = watched(LOOP.format(bad=-1, check=""), traced=False)
    assert not session.needs_second_run
    assert incidents == []
    assert [record.step for record in session.history.recent] == list(range(8))
    assert all(record.grad_norm and record.lr == 0.1 for record in session.history.recent)


def test_everything_is_put_back(watched: Watched) -> None:
    before = (
        torch.Tensor.item,
        torch.autograd.backward,
        torch.nn.utils.clip_grad_norm_,
        torch.optim.Optimizer.__init__,
        torch.optim.lr_scheduler.StepLR.__init__,
        torch.amp.GradScaler.step,
        torch.nn.Module.load_state_dict,
    )
    watched(LOOP.format(bad=-1, check=""))
    after = (
        torch.Tensor.item,
        torch.autograd.backward,
        torch.nn.utils.clip_grad_norm_,
        torch.optim.Optimizer.__init__,
        torch.optim.lr_scheduler.StepLR.__init__,
        torch.amp.GradScaler.step,
        torch.nn.Module.load_state_dict,
    )
    assert before == after


def test_clipping_scaled_gradients_is_seen(watched: Watched) -> None:
    session, _ = watched("""
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(3):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
    """)
    (clip,) = session.observers.clips.facts()
    assert clip.scaled and clip.scale == 1024.0 and clip.calls == 3
    (scaler,) = session.observers.scalers.facts()
    assert (scaler.steps, scaler.skipped, scaler.loaded) == (3, 0, False)


def test_clipping_after_unscale_is_not_scaled(watched: Watched) -> None:
    session, _ = watched("""
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = net(torch.randn(8, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
        scaler.step(opt)
        scaler.update()
    """)
    (clip,) = session.observers.clips.facts()
    assert not clip.scaled and clip.norm is not None and clip.norm < 100


def test_skipped_steps_of_a_scaler_are_counted_and_expected(watched: Watched) -> None:
    session, incidents = watched("""
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-4)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        for _ in range(12):
            loss = net(torch.randn(8, 4)).pow(2).mean() * 100
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    """)
    (scaler,) = session.observers.scalers.facts()
    assert 0 < scaler.skipped < 12 and scaler.streak == 0
    assert not errors(incidents)
    assert [record.applied for record in session.history.recent].count(False) == scaler.skipped


def test_rates_of_a_resumed_schedule(watched: Watched) -> None:
    session, _ = watched("""
        import math
        p = [nn.Parameter(torch.zeros(1))]
        opt = torch.optim.SGD([{"params": p, "initial_lr": 1e-3}], 1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1 + math.cos(math.pi * s / 50), last_epoch=60)
        for _ in range(20):
            opt.step()
            schedule.step()
    """)
    (facts,) = session.observers.schedulers.facts()
    assert (facts.kind, facts.start_epoch, facts.steps) == ("LambdaLR", 61, 20)
    assert facts.rose_after_fall and facts.rising


@pytest.mark.parametrize(
    "schedule",
    [
        "StepLR(opt, 5)",
        "CosineAnnealingLR(opt, 20)",
        "OneCycleLR(opt, 0.1, total_steps=21)",
        "ConstantLR(opt)",
    ],
)
def test_ordinary_schedules_do_not_look_wrong(watched: Watched, schedule: str) -> None:
    session, incidents = watched(f"""
        net = nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.{schedule}
        for _ in range(20):
            net(torch.randn(4, 2)).pow(2).mean().backward()
            opt.step()
            opt.zero_grad()
            schedule.step()
    """)
    (facts,) = session.observers.schedulers.facts()
    assert facts.steps == 20 and not facts.rose_after_fall
    assert not errors(incidents)


def test_lost_updates_of_half_weights_are_audited(watched: Watched) -> None:
    session, _ = watched("""
        net = nn.Linear(4, 1).bfloat16()
        nn.init.ones_(net.weight)
        nn.init.ones_(net.bias)
        opt = torch.optim.SGD(net.parameters(), 1e-6)
        for _ in range(9):
            (net(torch.randn(8, 4).bfloat16()) - 1).float().pow(2).mean().backward()
            opt.step()
            opt.zero_grad()
    """)
    (audit,) = session.observers.optimizers.audits()
    assert audit.dtype == "bfloat16" and audit.unchanged == audit.elements > 0
    assert audit.frozen_steps == audit.audited_steps == 5  # steps 0, 1, 2, 4 and 8


def test_the_rate_that_a_load_brings_is_recorded(watched: Watched) -> None:
    session, _ = watched("""
        old = torch.optim.SGD(nn.Linear(2, 1).parameters(), 0.5).state_dict()
        opt = torch.optim.SGD(nn.Linear(2, 1).parameters(), 0.1)
        opt.load_state_dict(old)
        opt.step()
    """)
    (load,) = session.observers.optimizers.load_events()
    assert (load.lr_before, load.lr_after, load.lr_used) == (0.1, 0.5, 0.5)


def test_a_refusal_that_is_told_late_keeps_its_step() -> None:
    """What the script reads of a refused loss comes before the refusal is told, and counts as the next step's."""
    suspicions = Suspicions()
    suspicions.add(Suspicion("loss", 4, None, seconds=2.0))
    suspicions.add(Suspicion("loss", 3, None, touched_state=True, seconds=1.9))
    (failure,) = suspicions.failures(trained=True)
    assert failure.step == 3 and failure.touched_state
    suspicions.add(Suspicion("loss", 7, None, touched_state=True))
    assert failure.step == 3
