"""Vitals change no bit of a run, break nothing, leave no hook behind; forecasts come before the failure."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stayfinite import Guard, Policy, RunStopped
from stayfinite.findings.subjects.outlook import VitalSample
from stayfinite.guarding.foresight import Foresight
from stayfinite.watch.vitals.vitals import Vitals


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> None:
    """Another test of this process may have compiled something, and softmax is not listened to from then on."""
    torch._dynamo.utils.counters.clear()


class Net(nn.Module):
    """Dropout, batch norm, a module used twice, kwargs, tuples and dicts, a checkpointed part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.drop = nn.Linear(8, 16), nn.Linear(16, 16), nn.Dropout(0.2)
        self.norm, self.pair = nn.BatchNorm1d(16), Pair()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.norm(self.drop(torch.relu(self.first(x))))
        h = self.again(self.again(h))
        h = checkpoint(self.again, h, use_reentrant=False)
        left, right = self.pair(given={"h": h})
        return {"out": torch.softmax(left.unsqueeze(0), -1).squeeze(0) + right.exp()}


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 4)

    def forward(self, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        out = self.inner(given["h"])
        return out, -out.abs()


def hooks_of(*models: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for model in models for m in model.modules())


def state_bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    moments = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
    return [*model.state_dict().values(), *moments, torch.get_rng_state()]


def train(
    folder: Path, how: str, *, vitals: bool, monkeypatch: pytest.MonkeyPatch, autocast: bool = False
) -> list[Tensor]:
    if not vitals:
        monkeypatch.setattr("stayfinite.watch.vitals.schedule.Schedule.wants", lambda self, step: False)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = Guard(model, optimizer, run_dir=folder, quiet=True)
    batches = [torch.randn(12, 8) for _ in range(20)]

    def loss_of(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = model(batch)["out"]
        return out.float().pow(2).mean()

    if how == "step":
        for batch in batches:
            guard.step(loss_of, batch)
    else:
        for batch in guard.watch(batches):
            optimizer.zero_grad()
            loss_of(batch).backward()
            optimizer.step()
    guard.close()
    assert hooks_of(model) == 0
    monkeypatch.undo()
    return state_bits(model, optimizer)


@pytest.mark.parametrize("how", ["step", "watch"])
@pytest.mark.parametrize("autocast", [False, True])
def test_no_bit_of_a_run_changes(
    how: str, autocast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(tmp_path / "plain", how, vitals=False, monkeypatch=monkeypatch, autocast=autocast)
    seen = train(tmp_path / "seen", how, vitals=True, monkeypatch=monkeypatch, autocast=autocast)
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert not events(tmp_path / "plain", "vitals")
    lines = events(tmp_path / "seen", "vitals")
    assert len(lines) >= 16
    assert {"first", "again", "pair", "pair.inner", "Net"} <= set(lines[0]["modules"])
    assert {"weight norm", "update / weight"} <= set(lines[1]["groups"][0])
    assert "gradient / sqrt(v)" in lines[1]["groups"][0]
    assert lines[1]["logits"] > 0 and next(iter(lines[1]["exponents"])).startswith("test_foresight.py:")
    assert autocast == ("outputs" in lines[1].get("zeros", {}))


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("event") == kind]


def sampled(vitals: Vitals, step: int, *optimizers: torch.optim.Optimizer) -> VitalSample:
    vector = vitals.gathered(optimizers)
    return vitals.sample(step, vector.tolist() if vector is not None else [])


def test_measured_numbers_are_right() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU())
    vitals, x = Vitals({"": model}), torch.randn(64, 4)
    vitals.begin()
    out = model(x)
    sample = sampled(vitals, 3)
    first = model[0](x)
    assert sample.step == 3 and hooks_of(model) == 0
    assert sample.modules["0"].max == pytest.approx(first.abs().max().item())
    assert sample.modules["0"].rms == pytest.approx(first.pow(2).mean().sqrt().item(), rel=1e-6)
    gain = out.pow(2).mean().sqrt() / x.pow(2).mean().sqrt()
    assert sample.modules["Sequential"].gain == pytest.approx(gain.item(), rel=1e-6)


def test_numbers_that_float32_cannot_square_have_a_size() -> None:
    model = nn.Identity()
    vitals = Vitals({"": model})
    vitals.begin()
    model(torch.full((8,), 1e30))
    vital = sampled(vitals, 0).modules["Identity"]
    assert vital.max == pytest.approx(1e30) and vital.rms == pytest.approx(1e30)


def test_large_tensors_of_such_numbers_have_one_from_the_second_sample_on() -> None:
    model = nn.Identity()
    vitals = Vitals({"": model})
    for step in (0, 1):
        vitals.begin()
        model(torch.full((100_000,), -1e30))
        vital = sampled(vitals, step).modules["Identity"]
        assert vital.max == pytest.approx(1e30)
        assert vital.rms == (math.inf if step == 0 else pytest.approx(1e30))
        assert vital.gain == (None if step == 0 else pytest.approx(1.0))


def test_groups_and_half_gradients_are_measured_right() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64), nn.Linear(64, 64).half()
    optimizer = torch.optim.Adam([{"params": first.parameters()}, {"params": second.parameters()}], 1e-2)
    vitals = Vitals({"a": first, "b": second})

    def gradients() -> None:
        for parameter in (*first.parameters(), *second.parameters()):
            parameter.grad = torch.randn_like(parameter)
        second.weight.grad[:32] = 0
        second.weight.grad[32:48] = 2**-20  # below float16's normal numbers

    gradients()
    vitals.update_begins([optimizer])
    before = first.weight.detach().clone()
    optimizer.step()
    vitals.update_ended(made=True)
    gradients()
    vitals.begin()
    sample = sampled(vitals, 1, optimizer)
    one, _ = sample.groups
    norm = torch.cat([p.flatten() for p in first.parameters()]).norm().item()
    assert one["weight norm"] == pytest.approx(norm, rel=1e-5)
    moved = ((first.weight - before).norm() / before.norm()).item()
    assert one["update / weight"] == pytest.approx(moved, rel=0.05)  # on a sample, with the bias
    squares = [optimizer.state[p]["exp_avg_sq"].sum() for p in first.parameters()]
    fresh = torch.cat([p.grad.flatten() for p in first.parameters()]).norm()
    ratio = (fresh / (sum(squares) / 0.001).sqrt()).item()
    assert one["gradient / sqrt(v)"] == pytest.approx(ratio, rel=1e-3)
    assert sample.zeros["gradients"] == pytest.approx(2048 / 4160)
    assert sample.zeros["subnormal gradients"] == pytest.approx(1024 / 4160, abs=0.002)


def test_hooks_go_when_the_forward_pass_raises(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True)

    def fails() -> Tensor:
        model(torch.randn(4, 8))
        raise KeyError("the user's own")

    with pytest.raises(KeyError):
        guard.step(fails)
    assert hooks_of(model) == 0
    guard.step(lambda: model(torch.randn(4, 8))["out"].mean())
    with pytest.raises(ZeroDivisionError):
        for _ in guard.watch([1, 2]):
            model(torch.randn(4, 8))
            raise ZeroDivisionError
    guard.close()
    assert hooks_of(model) == 0


def test_a_copy_of_a_model_made_in_a_sampled_step_is_not_measured(tmp_path: Path) -> None:
    model = Net()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path, quiet=True)
    copies: list[nn.Module] = []

    def loss() -> Tensor:
        copies.append(copy.deepcopy(model))
        with torch.no_grad():
            model(torch.randn(4, 8))
        return model(torch.randn(4, 8))["out"].mean()

    guard.step(loss)
    copies[0](torch.randn(4, 8))
    guard.close()
    assert hooks_of(model) == 0 and guard.counters.applied == 1


def test_a_defect_of_the_measuring_is_said_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr("stayfinite.watch.vitals.module_vitals.ModuleVitals._measure", broken)
    model = Net()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path, quiet=True)
    for _ in range(3):
        guard.step(lambda: model(torch.randn(4, 8))["out"].mean())
    guard.close()
    assert guard.counters.applied == 3
    (said,) = events(tmp_path, "warning")
    assert "vitals are off" in said["what"] and "a defect of ours" in said["what"]


def test_a_compiled_model_is_seen_from_outside_and_not_compiled_anew(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    made: list[int] = []

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        made.append(1)
        forward: Callable[..., Any] = graph.forward
        return forward

    model = torch.compile(inner, backend=backend)
    assert isinstance(model, nn.Module)
    guard = Guard(model, torch.optim.SGD(inner.parameters(), lr=0.01), run_dir=tmp_path, quiet=True)
    for _ in range(20):
        guard.step(lambda: model(torch.randn(4, 4)).pow(2).mean())
    guard.close()
    assert len(made) == 1
    assert set(events(tmp_path, "vitals")[0]["modules"]) == {"OptimizedModule"}
    unseen = [text for line in events(tmp_path, "vitals") for text in line.get("unseen", [])]
    assert any("compiled" in text for text in unseen)


class Growing(nn.Module):
    """Six blocks; a step makes each of them a little stronger, until float16 ends."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.blocks = rate, nn.ModuleList(Block() for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        for block in self.blocks:
            block.gain = block.gain * self.rate
        return x.float().mean()


class Block(nn.Module):
    gain: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gain", torch.tensor(1.0))
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.gain).half() @ self.weight.half()


def grow(folder: Path, policy: Policy, steps: int = 80, warm_up: int = 0) -> Guard:
    torch.manual_seed(0)
    model = Growing(1.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-6, total_iters=warm_up) if warm_up else None
    guard = Guard(model, optimizer, schedule, run_dir=folder, policy=policy, quiet=True, locate=False)
    for _ in range(steps):
        guard.step(lambda: model(torch.rand(4, 4)))
        if guard.counters.skipped:
            break
    return guard


def test_an_overflow_is_foretold_and_a_healthy_copy_is_there(tmp_path: Path) -> None:
    guard = grow(tmp_path, Policy(), steps=120)
    assert guard.counters.skipped == 1
    failed = guard.counters.applied
    said = events(tmp_path, "forecast")
    assert said and failed - said[0]["step"] >= 8
    first = said[0]
    assert first["limit"] == 65504 and first["steps_left"][0] <= failed - first["step"] + 4
    assert set(first["modules"]) >= {f"blocks.{i}" for i in range(6)}
    (finding,) = [e["finding"] for e in events(tmp_path, "finding") if e["finding"]["code"] == "RUN018"]
    assert finding["cause"] == "FP16_OVERFLOW" and "in each of 6 `Block`" in finding["message"]
    assert guard.recovery.last_good.step is not None and 0 < guard.recovery.last_good.step < said[0]["step"]
    guard.close()


class _Attention(nn.Module):
    """float16 scores that no module puts out, of inputs that are 15 % larger each time."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.calls = nn.Linear(16, 16), nn.Linear(16, 16), 0

    def forward(self, x: Tensor) -> Tensor:
        x, self.calls = x * 1.15**self.calls, self.calls + 1
        with torch.autocast("cpu", torch.float16):
            return (self.query(x) @ self.key(x).transpose(1, 2)).softmax(-1)


def test_scores_of_an_attention_are_followed_although_no_output_grows_that_far(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _Attention()
    guard = Guard(model, torch.optim.SGD(model.parameters(), 1e-6), run_dir=tmp_path / "run", prove="off")
    actions = []
    while not actions or (actions[-1] == "none" and len(actions) < 80):
        actions.append(guard.step(lambda: model(torch.randn(4, 6, 16)).float()[..., 0].mean()).action)
    guard.close()
    lines = [json.loads(line) for line in (tmp_path / "run" / "run.jsonl").read_text().splitlines()]
    told = [line for line in lines if line.get("event") == "forecast"]
    assert told and told[0]["what"].startswith("attention score of test_foresight.py:")
    assert len(actions) < 80 and len(actions) - 1 - told[0]["step"] >= 8
    assert actions[-1] == "rollback", "growth that was followed to its end"


def test_growth_to_its_end_goes_back_at_once_and_far_down_with_the_rate(tmp_path: Path) -> None:
    guard = grow(tmp_path, Policy(), steps=120)
    assert guard.counters.skipped == 1 and guard.counters.rollbacks == 1
    (back,), said = events(tmp_path, "rollback"), events(tmp_path, "forecast")
    good = guard.recovery.last_good.step
    assert good is not None and good < said[0]["step"] and f"the state of step {good};" in back["what"]
    since = guard.counters.rolled_back
    rungs = max(1, math.ceil(math.log2(100 / since)))  # until such growth would take a hundred updates
    assert guard.state.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-9 * 0.5**rungs)
    (model,) = guard.state.models.values()
    guard.step(lambda: model(torch.rand(4, 4)))
    assert guard.counters.skipped == 1
    assert events(tmp_path, "forecast") == said  # what was said of the growth is not said of the copy
    guard.close()


class Hiding(Growing):
    """In float32, behind a norm that divides by Inf once the squares are past their range: the loss stays finite."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.seen = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x * block.gain * block.weight.diagonal()
            block.gain = block.gain * self.rate
        x = self.seen(x)
        return (x / torch.linalg.vector_norm(x)).mean()


@pytest.mark.parametrize(("policy", "rollbacks"), [(Policy(), 1), (Policy(foresee="warn"), 0)])
def test_growth_past_its_limit_goes_back_before_a_step_fails(
    tmp_path: Path, policy: Policy, rollbacks: int
) -> None:
    torch.manual_seed(0)
    model = Hiding(1.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, locate=False, policy=policy)
    for _ in range(29):
        assert guard.step(lambda: model(torch.rand(4, 4))).applied
    assert guard.counters.skipped == 0 and guard.counters.rollbacks == rollbacks
    for back in events(tmp_path, "rollback"):
        assert "past its limit, as was foretold" in back["what"]
        assert optimizer.param_groups[0]["lr"] < 1e-9
        assert model.get_buffer("blocks.0.gain") < 1.5**8, "the growth is undone"
    guard.close()


def test_growth_that_rests_is_not_copied_and_a_failure_goes_back_to_before_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Growing(1.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, locate=False)
    while not guard._foresight.course.alarmed:
        guard.step(lambda: model(torch.rand(4, 4)))
    before, model.rate = guard.recovery.last_good.step, 1.0
    for _ in range(18):
        guard.step(lambda: model(torch.rand(4, 4)))
    assert (
        guard._foresight.course.alarmed and not guard._foresight.course.growing
    )  # it rests, and has not calmed down
    assert guard.recovery.last_good.step == before and not events(tmp_path, "keep")[1:]
    for _ in range(2):  # while it rests it is not sampled at every step: one failure may not have been seen
        if not guard.counters.rollbacks:
            guard.step(lambda: model(1000 * torch.rand(4, 4)))
    assert guard.counters.rollbacks == 1
    assert f"the state of step {before};" in events(tmp_path, "rollback")[0]["what"]
    guard.close()


def test_growth_in_a_warm_up_lowers_the_rate_further_for_its_peak_is_still_to_come(tmp_path: Path) -> None:
    guard = grow(tmp_path, Policy(), steps=120, warm_up=200)
    assert guard.counters.rollbacks == 1 and guard.counters.lowerings == 3  # without one: see above
    assert guard.state.optimizers[0].param_groups[0]["initial_lr"] == pytest.approx(1e-9 / 8)
    guard.close()


@pytest.mark.parametrize(("failing", "rollbacks"), [((20, 21), 1), ((20, 23), 1), ((20, 30, 40), 0)])
def test_near_the_limit_all_along_two_failures_soon_after_each_other_go_back(
    failing: tuple[int, ...], rollbacks: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False).half()
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, locate=False)
    for step in range(44):
        batch = torch.full((1, 1), 4e4 + 1000 * (step % 7)).half()
        times = 2.0 if step in failing else 1.0
        guard.step(lambda batch=batch, times=times: model(batch * times).float().mean())
    assert guard.counters.skipped == len(failing) and guard.counters.rollbacks == rollbacks
    if rollbacks:  # no growth, so that the rate is lowered by half a rung, and little is lost
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5**0.5 * 1e-12)
        assert guard.counters.lowerings == 1
        assert guard.counters.rolled_back <= 20
    else:  # a copy is taken only after a while without a failure
        assert guard.recovery.last_good.step == failing[0]
    guard.close()


def test_ways_back_that_were_foretold_leave_the_ladder_its_own(tmp_path: Path) -> None:
    """Three early ones, of half a rung each; then seven failures in a row. It went on to a stop before."""
    model = nn.Linear(1, 1, bias=False).half()
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, locate=False)
    failing = {20, 21, 40, 41, 60, 61, *range(80, 88)}
    for step in range(90):
        batch = torch.full((1, 1), 4e4 + 1000 * (step % 7)).half()
        times = 2.0 if step in failing else 1.0
        guard.step(lambda batch=batch, times=times: model(batch * times).float().mean())
    counters = guard.counters
    assert counters.skipped == len(failing) and (counters.rollbacks, counters.foretold) == (4, 3)
    assert [line["step"] for line in events(tmp_path, "lower-lr")] == [84], "half rungs have left room for it"
    rungs = 3 * 0.5 + 1 + 0.5
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5**rungs * 1e-12)
    guard.save(tmp_path / "end.pt")
    guard.close()
    resumed = Guard(model, optimizer, run_dir=tmp_path / "resumed", quiet=True, locate=False)
    resumed.restore(tmp_path / "end.pt")
    assert resumed.recovery.ladder.lowered == rungs and resumed.counters.foretold == 3
    resumed.close()


@pytest.mark.parametrize(("largest", "kept"), [(4e4, 36), (5e4, 36), (6e4, 4)])
def test_a_state_at_the_edge_does_not_take_the_place_of_one_with_room(
    largest: float, kept: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False).half()
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, locate=False)
    for step in range(40):
        size = largest if step > 6 else 4e4
        batch = torch.full((1, 1), size + 500 * (step % 7)).half()
        guard.step(lambda batch=batch: model(batch).float().mean())
    assert guard.counters.skipped == 0 and not events(tmp_path, "rollback")
    assert guard.recovery.last_good.step == kept
    for step in range(
        40, 60
    ):  # until it is old: more would be lost by going back than a copy without room costs
        batch = torch.full((1, 1), largest + 500 * (step % 7)).half()
        guard.step(lambda batch=batch: model(batch).float().mean())
    assert guard.recovery.last_good.step == 52
    guard.close()


def test_bad_batches_under_an_alarm_are_skipped_as_ever(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Growing(1.02)
    guard = Guard(
        model, torch.optim.SGD(model.parameters(), lr=1e-9), run_dir=tmp_path, quiet=True, locate=False
    )
    while not guard._foresight.course.alarmed:
        guard.step(lambda: model(torch.rand(4, 4)))
    for _ in range(3):  # nothing in the model has left its range
        guard.step(lambda: model(torch.rand(4, 4)) * math.nan)
    assert guard.counters.skipped == 3 and guard.counters.rollbacks == 0
    guard.close()


def test_with_warnings_alone_the_ladder_is_as_ever(tmp_path: Path) -> None:
    guard = grow(tmp_path, Policy(foresee="warn"), steps=120)
    (model,) = guard.state.models.values()
    for _ in range(2):
        guard.step(lambda: model(torch.rand(4, 4)))
    assert guard.counters.skipped == 3 and guard.counters.rollbacks == 0
    guard.close()


def test_policy_stop_ends_a_run_that_is_still_finite(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="forecast") as stopped:
        grow(tmp_path, Policy(foresee="stop"), steps=120)
    assert stopped.value.checkpoint is not None and Path(stopped.value.checkpoint).is_file()


def test_policy_is_one_of_four() -> None:
    with pytest.raises(ValueError, match="foresee='watch'"):
        Policy(foresee="watch")  # type: ignore[arg-type]


def test_what_a_guard_holds_does_not_grow(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), run_dir=tmp_path, quiet=True)
    for _ in range(300):
        guard.step(lambda: model(torch.randn(4, 2)).pow(2).mean())
    guard.close()
    foresight: Foresight = guard._foresight
    assert len(foresight.course.samples) <= 64
    assert all(len(points) <= 16 for points in foresight.course._state.series.values())
    assert len(foresight.course._state.way) <= 40
