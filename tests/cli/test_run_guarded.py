"""`stayfinite run` guards an unchanged script: bad updates never reach its weights, good ones are left as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.running import guarded, plain
from stayfinite.checkpoint import verify


def state(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


# One sample of batch 37 is broken. `--without` gives the run that never saw that batch.
LOADER = """
    import sys
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x = torch.randn(50 * 16, 6)
    y = x.sum(1, keepdim=True)
    x[37 * 16 + 5, 3] = float("inf")
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    average = torch.optim.swa_utils.AveragedModel(net)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50)
    held_out = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=32)
    for number, (inputs, targets) in enumerate(DataLoader(TensorDataset(x, y), batch_size=16)):
        if "--without" in sys.argv and number == 37:
            continue
        loss = ((net(inputs) - targets) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        schedule.step()
        average.update_parameters(net)
        if number in (10, 30):
            net.eval()
            for some, wanted in held_out:
                net(some)
            net.train()
    everything = {"net": net.state_dict(), "opt": opt.state_dict(), "schedule": schedule.state_dict(),
                  "average": average.state_dict(), "random": torch.get_rng_state()}
    torch.save(everything, "end.pt")
"""

# The same without a DataLoader.
RANGE = """
    import sys
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(50 * 16, 6)
    y = x.sum(1, keepdim=True)
    x[37 * 16 + 5, 3] = float("inf")
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50)
    for number in range(50):
        if "--without" in sys.argv and number == 37:
            continue
        loss = ((net(x[number * 16:number * 16 + 16]) - y[number * 16:number * 16 + 16]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
    everything = {"net": net.state_dict(), "opt": opt.state_dict(), "schedule": schedule.state_dict(),
                  "random": torch.get_rng_state()}
    torch.save(everything, "end.pt")
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(LOADER, id="with a loader"),
        pytest.param(RANGE, id="without a loader", marks=pytest.mark.long),
    ],
)
def test_a_bad_batch_leaves_no_trace_in_the_run(tmp_path: Path, source: str) -> None:
    done = guarded(tmp_path, source, "--format", "json", "--output", "out.json", "--run-dir", "runs/a")
    assert done.returncode == 0, done.stderr
    with_guard = state(tmp_path / "end.pt")
    assert plain(tmp_path, source, "--without").returncode == 0
    assert_same(with_guard, state(tmp_path / "end.pt"))

    incident = json.loads((tmp_path / "out.json").read_text())["incidents"][0]
    assert (incident["step"], incident["action"], incident["reproduced"]) == (37, "skip", True)
    assert incident["findings"][0]["cause"] == "DATA_NONFINITE"
    assert "step 37" in done.stderr and "not applied (skip)" in done.stderr
    record = [json.loads(line) for line in (tmp_path / "runs/a/run.jsonl").read_text().splitlines()]
    actions = [line["action"] for line in record if "event" not in line]
    assert actions == ["none"] * 37 + ["skip"] + ["none"] * 12


HOPELESS = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(40):
        out = net(torch.randn(8, 4))
        loss = (out.pow(2) if step < 5 else (out - out).sqrt() / out).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("came to its end")
"""


HOPELESS_LOADER = HOPELESS.replace(
    "    for step",
    "    loader = torch.utils.data.DataLoader(torch.randn(64, 4), 8, shuffle=True)\n    for step",
).replace("net(torch.randn(8, 4))", "net(next(iter(loader)))")


@pytest.mark.parametrize(("source", "line"), [(HOPELESS, 10), (HOPELESS_LOADER, 11)], ids=["range", "next"])
def test_a_run_that_only_fails_is_stopped_with_a_clean_checkpoint(
    tmp_path: Path, source: str, line: int
) -> None:
    done = guarded(tmp_path, source, "--run-dir", "runs/a")
    assert done.returncode == 1 and "came to its end" not in done.stdout
    assert "Traceback" not in done.stderr
    assert "10 failures in a row" in done.stderr and "clean checkpoint" in done.stderr
    assert f"train.py:{line}" in done.stderr
    (saved,) = (tmp_path / "runs/a/snapshots").glob("*.pt")
    assert verify(saved).healthy


SCALED = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL)
    for step in range(30):
        out = net(torch.randn(8, 4))
        loss = (out.pow(2) if step < 5 else BAD).sum()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print("came to its end")
"""


@pytest.mark.parametrize(
    "bad, scale, stopped_at, what",
    [
        ('out * float("nan")', 1024.0, 14, "the loss is nan"),
        ("(out - out).sqrt()", 1.0, 20, "gradients are not finite at a loss scale of"),
    ],
    ids=["loss", "gradient"],
)
def test_a_scaler_may_skip_as_long_as_a_smaller_scale_can_help(
    tmp_path: Path, bad: str, scale: float, stopped_at: int, what: str
) -> None:
    source = SCALED.replace("BAD", bad).replace("INITIAL", str(scale))
    done = guarded(tmp_path, source, "--locate", "off", "--run-dir", "runs/a")
    assert done.returncode == 1 and "came to its end" not in done.stdout
    assert f"stopped at 10 failures in a row at step {stopped_at}: {what}" in done.stderr
    record = [json.loads(line) for line in (tmp_path / "runs/a/run.jsonl").read_text().splitlines()]
    actions = [line["action"] for line in record if "event" not in line]
    assert actions[-11:] == [actions[-11], *["skip"] * 9, "stop"] and actions[-11] != "skip"


def test_gradients_that_a_scaler_skips_in_vain_are_located(tmp_path: Path) -> None:
    source = SCALED.replace("BAD", "(out - out).sqrt()").replace("INITIAL", "0.0625")
    done = guarded(tmp_path, source, "--policy", "stop", "--no-prove", "--run-dir", "runs/a")
    assert done.returncode == 1 and "1 update was not applied" in done.stderr
    incident = json.loads((tmp_path / "runs/a/incidents/0001/incident.json").read_text())
    assert (incident["step"], incident["action"], incident["trigger"]) == (7, "stop", "gradient")
    assert (incident["birth"]["line"], incident["findings"][0]["code"]) == (11, "NUM017")


def test_policies_named_on_the_command_line(tmp_path: Path) -> None:
    stopped = guarded(tmp_path, HOPELESS, "--policy", "stop", "--locate", "off", "--run-dir", "runs/stop")
    assert stopped.returncode == 1 and "came to its end" not in stopped.stdout
    record = (tmp_path / "runs/stop/run.jsonl").read_text().splitlines()
    assert [json.loads(line).get("action") for line in record].count("stop") == 1
    let_go = guarded(tmp_path, HOPELESS, "--policy", "watch", "--locate", "off")
    assert let_go.returncode == 0 and "came to its end" in let_go.stdout


# Ways to train that have nothing wrong with them.
AMP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
    for step in range(12):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(torch.randn(8, 4)).float().pow(2).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    torch.save({"net": net.state_dict(), "scaler": scaler.state_dict()}, "end.pt")
"""
FOLDS = """
    import gc
    import weakref
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    seen, weights = [], {}

    def train(fold):
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        opt = torch.optim.Adam(net.parameters())
        seen.append(weakref.ref(net))
        loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)
        schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
        for epoch in range(2):
            for number, (inputs, targets) in enumerate(loader):
                try:
                    loss = ((net(inputs) - targets) ** 2).mean()
                    if number == 3:
                        raise ValueError("a sample that the script leaves out")
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                except ValueError:
                    continue
                if number == 5:
                    break
            schedule.step()
            net.eval()
            for inputs, targets in DataLoader(data, batch_size=32):
                net(inputs)
            net.train()
        weights[str(fold)] = net.state_dict()

    for fold in range(3):
        train(fold)
        gc.collect()
        assert not any(net() is not None for net in seen[:-1]), "models of earlier folds are kept alive"
    torch.save(weights, "end.pt")
"""
ADVERSARIES = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    maker, judge = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    first, second = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    entropy = nn.BCEWithLogitsLoss()
    for batch in DataLoader(torch.randn(32, 3), batch_size=8):
        for wanted in (0.0, 1.0):
            second.zero_grad()
            guess = judge(batch if wanted else maker(torch.randn(8, 2)).detach())
            entropy(guess, torch.full_like(guess, wanted)).backward()
            second.step()
        first.zero_grad()
        guess = judge(maker(torch.randn(8, 2)))
        entropy(guess, torch.ones_like(guess)).backward()
        first.step()
    torch.save({"maker": maker.state_dict(), "judge": judge.state_dict()}, "end.pt")
"""
TENSORS = """
    import torch

    torch.manual_seed(0)
    weight = torch.randn(3, requires_grad=True)
    unused = torch.randn(3, requires_grad=True)
    opt = torch.optim.LBFGS([weight], lr=0.5)
    other = torch.optim.SGD([unused], lr=0.5)

    def closure():
        opt.zero_grad()
        loss = (weight - 1).pow(2).sum()
        loss.backward()
        return loss

    for step in range(3):
        opt.step(closure)
        other.step()  # has no gradients: torch does nothing
    for fold in range(2):  # a new optimizer for the same tensor
        opt = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        for step in range(3):
            for part in range(2):  # gradients of two parts
                (weight - 2).pow(2).sum().backward()
            opt.step()
            opt.zero_grad()
    torch.save({"weight": weight.detach()}, "end.pt")
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(FOLDS, id="folds", marks=pytest.mark.long),
        # what follows is guarded in process too: tests/guard, and the campaign of random trainings
        pytest.param(AMP, id="amp", marks=pytest.mark.long),
        pytest.param(ADVERSARIES, id="adversaries", marks=pytest.mark.long),
        pytest.param(TENSORS, id="tensors", marks=pytest.mark.long),
    ],
)
def test_healthy_training_of_any_kind_is_left_as_it_is(tmp_path: Path, source: str) -> None:
    done = guarded(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with_guard = state(tmp_path / "end.pt")
    assert plain(tmp_path, source).returncode == 0
    assert_same(with_guard, state(tmp_path / "end.pt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["end.pt", "train.py"]


CLIPPED = """
    import sys
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(5):
        opt.zero_grad()
        (10 * net(torch.randn(8, 4))).pow(2).mean().backward()
        if "--clip-here" in sys.argv:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
    torch.save({"net": net.state_dict()}, "end.pt")
"""


def test_clip_clips_a_script_that_does_not(tmp_path: Path) -> None:
    assert guarded(tmp_path, CLIPPED, "--clip", "0.5").returncode == 0
    with_guard = state(tmp_path / "end.pt")
    assert plain(tmp_path, CLIPPED, "--clip-here").returncode == 0
    assert_same(with_guard, state(tmp_path / "end.pt"))


WRITING = """
    import os
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    os.makedirs("out", exist_ok=True)
    log = open("out/log.txt", "a")
    for step in range(12):
        x = torch.randn(8, 4)
        seen = torch.zeros(8) if step == 6 else torch.ones(8)
        loss = (net(x).squeeze(1).pow(2) * seen).sum() / seen.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.write(f"step {step}\\n")
        torch.save(net.state_dict(), "out/part.pt")
        os.replace("out/part.pt", "out/latest.pt")
        if step == 3:
            assert torch.load("out/latest.pt")
            os.remove("out/latest.pt")
"""


@pytest.mark.long  # tests/sandbox/test_side_effects.py does so for more kinds
def test_the_second_run_writes_over_nothing(tmp_path: Path) -> None:
    done = guarded(tmp_path, WRITING, "--format", "json", "--output", "out.json")
    assert done.returncode == 0 and "running the script again" in done.stderr
    (incident,) = json.loads((tmp_path / "out.json").read_text())["incidents"]
    assert incident["reproduced"] and incident["findings"][0]["cause"] == "EMPTY_REDUCTION"
    assert (tmp_path / "out/log.txt").read_text() == "".join(f"step {n}\n" for n in range(12))
    weights = state(tmp_path / "out/latest.pt")
    assert all(torch.isfinite(value).all() for value in weights.values())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["latest.pt", "log.txt"]


GROWS = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    for step in range(30):
        with torch.no_grad():
            net[1].weight.mul_({factor})
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = net(torch.randn(16, 8)).float().abs().mean()
        loss.backward()
        optimizer.step()
    torch.save(net.state_dict(), "net.pt")
"""


@pytest.mark.parametrize("factor, foretold", [(1.35, True), pytest.param(1.0, False, marks=pytest.mark.long)])
def test_an_unchanged_script_that_grows_is_warned_in_time(
    tmp_path: Path, factor: float, foretold: bool
) -> None:
    """Before anything fails, and said at once; the weights are those of the script alone."""
    source = GROWS.replace("{factor}", str(factor))
    plain(tmp_path, source)
    alone = state(tmp_path / "net.pt")
    done = guarded(tmp_path, source, "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert_same(state(tmp_path / "net.pt"), alone)
    lines = [json.loads(line) for line in (tmp_path / "run" / "run.jsonl").read_text().splitlines()]
    assert sum(line.get("event") == "vitals" for line in lines) >= 20
    forecasts = [line for line in lines if line.get("event") == "forecast"]
    assert bool(forecasts) == foretold == ("warning RUN018: the largest output of 1 (Linear)" in done.stderr)
    assert all(line["limit"] == 65504 for line in forecasts)
    assert not foretold or forecasts[0]["step"] <= 24  # it overflows at step 36


def test_the_file_that_the_report_names_is_written_whatever_the_format(tmp_path: Path) -> None:
    done = guarded(tmp_path, LOADER, "--no-prove", "--locate", "off", "--output", "out.json")
    assert f"{tmp_path / 'out.json'}" in done.stderr.replace("\n", "")
    (incident,) = json.loads((tmp_path / "out.json").read_text())["incidents"]
    assert incident["step"] == 37
