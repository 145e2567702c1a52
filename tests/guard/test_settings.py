"""The guard in every kind of training it says it works with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from guard.models import CNN, GPT, images, texts
from stayfinite import Guard, Policy, RunStopped

NAN = math.nan


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(11)


def line_data(count: int = 40) -> list[tuple[Tensor, Tensor]]:
    weights = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
    return [(x, x @ weights.T) for x in (torch.randn(16, 4) for _ in range(count))]


def test_lbfgs_step_function_undoes_a_bad_evaluation(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)
    guard = Guard(net, optimizer, run_dir=tmp_path, quiet=True)
    data = line_data(8)
    guard.step(lambda: F.mse_loss(net(data[0][0]), data[0][1]))
    before = [p.detach().clone() for p in net.parameters()]
    state = {key: value for entry in optimizer.state.values() for key, value in entry.items()}
    bad = guard.step(lambda: F.mse_loss(net(data[1][0] * NAN), data[1][1]))
    assert bad.applied is False and bad.incident is not None
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    now = {key: value for entry in optimizer.state.values() for key, value in entry.items()}
    assert now.keys() == state.keys() and now["func_evals"] == state["func_evals"]
    for x, y in data[2:]:
        result = guard.step(lambda x=x, y=y: F.mse_loss(net(x), y))
    assert result.applied and result.loss is not None and result.loss < 1e-3


def test_lbfgs_in_a_watched_loop(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)
    guard = Guard(net, optimizer, run_dir=tmp_path, quiet=True)
    data = line_data(8)
    data[3][0][0, 0] = NAN
    for x, y in guard.watch(data):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert (guard.counters.applied, guard.counters.skipped) == (7, 1)
    assert guard.bad_state() == []
    assert F.mse_loss(net(data[0][0]), data[0][1]) < 1e-3


def test_sparse_gradients(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Flatten(), nn.Linear(24, 2))
    optimizers = [
        torch.optim.SparseAdam(net[0].parameters(), 1e-2),
        torch.optim.SGD(net[2].parameters(), 1e-2),
    ]
    guard = Guard(net, optimizers, clip_norm=1.0, run_dir=tmp_path, quiet=True)
    for i in range(30):
        ids, y = torch.randint(0, 50, (16, 3)), torch.randint(0, 2, (16,))
        scale = NAN if i == 12 else 1.0
        result = guard.step(lambda ids=ids, y=y, scale=scale: F.cross_entropy(net(ids), y) * scale, batch=ids)
        assert result.applied is (i != 12)
    assert guard.bad_state() == []


def test_sparse_norm_and_clip_are_right(tmp_path: Path) -> None:
    """Rows that occur twice are added up before the norm is taken."""
    embedding = nn.Embedding(10, 4, sparse=True)
    guard = Guard(
        embedding, torch.optim.SGD(embedding.parameters(), 0.1), clip_norm=0.5, run_dir=tmp_path, quiet=True
    )
    before = embedding.weight.detach().clone()
    result = guard.step(lambda: embedding(torch.tensor([1, 1, 3])).sum())
    assert result.grad_norm == pytest.approx(math.sqrt(4 * 2**2 + 4 * 1**2))
    moved = (embedding.weight.detach() - before).norm()
    assert moved == pytest.approx(0.1 * 0.5, rel=1e-4)


def test_frozen_unused_and_tied_parameters(tmp_path: Path) -> None:
    model = GPT()
    model.positions.requires_grad_(False)
    model.unused = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    guard = Guard(model, optimizer, clip_norm=1.0, run_dir=tmp_path, quiet=True)
    assert guard.audit == []
    losses = [guard.step(lambda ids=ids: model.loss(ids)).loss for ids in texts(40)]
    assert losses[-1] < losses[0] and guard.counters.applied == 40
    assert sum(name == "tokens.weight" for name in guard.state.parameter_names.values()) == 1


def test_complex_parameters(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
    model = nn.ParameterList([weight])
    guard = Guard(model, torch.optim.Adam([weight], 1e-2), clip_norm=1.0, run_dir=tmp_path, quiet=True)
    target = torch.randn(4, 4, dtype=torch.complex64)
    first = guard.step(lambda: (weight - target).abs().pow(2).mean())
    bad = guard.step(lambda: ((weight - target) * complex(NAN, 0)).abs().pow(2).mean())
    assert bad.applied is False and guard.bad_state() == []
    for _ in range(100):
        last = guard.step(lambda: (weight - target).abs().pow(2).mean())
    assert last.loss < first.loss


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_parameters_with_sgd(tmp_path: Path, dtype: torch.dtype) -> None:
    net = nn.Linear(4, 1).to(dtype)
    guard = Guard(net, torch.optim.SGD(net.parameters(), 0.02), clip_norm=1.0, run_dir=tmp_path, quiet=True)
    for i, (x, y) in enumerate(line_data(60)):
        x, y = x.to(dtype), y.to(dtype)
        if i == 20:
            x[0, 0] = math.inf
        result = guard.step(lambda x=x, y=y: F.mse_loss(net(x).float(), y.float()))
        assert result.applied is (i != 20)
    assert guard.bad_state() == []


def test_a_half_norm_beyond_65504_is_no_failure(tmp_path: Path) -> None:
    """Each float16 gradient is finite, their norm is not in float16: it is taken in float32 and clips rightly."""
    weight = nn.Parameter(torch.zeros(100, dtype=torch.float16))
    guard = Guard(
        nn.ParameterList([weight]),
        torch.optim.SGD([weight], 1.0),
        clip_norm=1.0,
        run_dir=tmp_path,
        quiet=True,
    )
    result = guard.step(lambda: (weight.float() * 30000).sum())
    assert result.applied and result.grad_norm == pytest.approx(3e5, rel=1e-3)
    assert weight.detach().float().norm() == pytest.approx(1.0, rel=1e-2)


def test_torch_compile(tmp_path: Path) -> None:
    model = CNN()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    guard = Guard(compiled, optimizer, clip_norm=1.0, run_dir=tmp_path, quiet=True)
    for i, (x, y) in enumerate(images(12)):
        if i == 6:
            x[0, 0, 0, 0] = math.inf
        result = guard.step(lambda x=x, y=y: F.cross_entropy(compiled(x), y), batch=(x, y))
        assert result.applied is (i != 6)
    assert guard.bad_state() == []
    assert all(torch.isfinite(b).all() for b in model.buffers())


@pytest.mark.parametrize("way", ["step", "watch"])
def test_two_models_that_train_in_turns(tmp_path: Path, way: str) -> None:
    """A GAN: a bad generator step leaves the discriminator's good step of the same batch alone."""
    generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    of_g, of_c = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
    guard = Guard({"g": generator, "c": critic}, [of_g, of_c], run_dir=tmp_path, quiet=True)
    bad_at = 9

    def critic_loss(real: Tensor, noise: Tensor) -> Tensor:
        return F.softplus(-critic(real)).mean() + F.softplus(critic(generator(noise).detach())).mean()

    def generator_loss(noise: Tensor, i: int) -> Tensor:
        return F.softplus(-critic(generator(noise * (NAN if i == bad_at else 1.0)))).mean()

    data = [(torch.randn(16, 2) + 2, torch.randn(16, 4)) for _ in range(20)]
    if way == "step":
        for i, (real, noise) in enumerate(data):
            assert guard.step(lambda r=real, n=noise: critic_loss(r, n), optimizer=of_c).applied
            assert guard.step(lambda n=noise, i=i: generator_loss(n, i), optimizer=of_g).applied is (
                i != bad_at
            )
    else:
        for i, (real, noise) in enumerate(guard.watch(data)):
            before = [p.detach().clone() for p in critic.parameters()]
            of_c.zero_grad()
            critic_loss(real, noise).backward()
            of_c.step()
            assert any(not torch.equal(a, b) for a, b in zip(before, critic.parameters(), strict=True))
            of_g.zero_grad()
            generator_loss(noise, i).backward()
            of_g.step()
    assert (guard.counters.applied, guard.counters.skipped) == (39, 1)
    assert guard.bad_state() == []


def test_no_sync_refuses_on_the_device_and_reports_later(tmp_path: Path) -> None:
    model = CNN()
    ema = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    guard = Guard(
        model, optimizer, scheduler, ema=ema, clip_norm=1.0, sync=False, run_dir=tmp_path, quiet=True
    )
    for i, (x, y) in enumerate(images(30)):
        before = [t.detach().clone() for t in [*model.parameters(), *model.buffers()]]
        guard.settle()
        averages = [t.detach().clone() for t in ema.parameters()]
        result = guard.step(
            lambda x=x, y=y, i=i: F.cross_entropy(model(x * (math.inf if i == 7 else 1)), y), batch=x
        )
        if i == 0:  # it makes the optimizer's state: this one is waited for
            assert result.applied
            continue
        assert result.applied is None and result.action == "pending"
        if i == 7:
            after = [*model.parameters(), *model.buffers()]
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            guard.settle()
            assert all(torch.equal(a, b) for a, b in zip(averages, ema.parameters(), strict=True))
            assert guard.counters.skipped == 1
    guard.settle()
    assert (guard.counters.applied, guard.counters.skipped) == (29, 1)
    assert scheduler.last_epoch == 29 and guard.bad_state() == []


def test_no_sync_needs_fused_optimizers(tmp_path: Path) -> None:
    net = nn.Linear(2, 1)
    with pytest.raises(ValueError, match="fused=True"):
        Guard(net, torch.optim.AdamW(net.parameters()), sync=False, run_dir=tmp_path)


def test_named_components_and_a_given_total(tmp_path: Path) -> None:
    """With a "total" only that is trained; a bad part that is not in it is no reason to refuse."""
    net = nn.Linear(4, 1)
    guard = Guard(net, torch.optim.SGD(net.parameters(), 0.1), run_dir=tmp_path, quiet=True)
    x, y = line_data(1)[0]

    def parts(bad: float) -> dict[str, Tensor]:
        mse = F.mse_loss(net(x), y)
        return {"total": mse, "mse": mse, "metric": torch.tensor(bad)}

    result = guard.step(lambda: parts(NAN))
    assert result.applied and set(result.components) == {"mse", "metric"}
    assert math.isnan(result.components["metric"])


@pytest.mark.parametrize(("choice", "expected"), [("hold", 1), ("advance", 2)])
def test_scheduler_may_advance_on_a_skip(tmp_path: Path, choice: str, expected: int) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    guard = Guard(
        net, optimizer, scheduler, policy=Policy(scheduler_on_skip=choice), run_dir=tmp_path, quiet=True
    )
    x, y = line_data(1)[0]
    guard.step(lambda: F.mse_loss(net(x), y))
    guard.step(lambda: F.mse_loss(net(x * NAN), y))
    assert scheduler.last_epoch == expected


def test_stop_policy_stops_at_the_first_failure_with_a_clean_checkpoint(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    guard = Guard(net, torch.optim.SGD(net.parameters(), 0.1), policy="stop", run_dir=tmp_path, quiet=True)
    x, y = line_data(1)[0]
    guard.step(lambda: F.mse_loss(net(x), y))
    weights = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(RunStopped, match="first failure") as stopped:
        guard.step(lambda: F.mse_loss(net(x * NAN), y), batch=x)
    assert stopped.value.checkpoint is not None
    other = nn.Linear(4, 1)
    fresh = Guard(other, torch.optim.SGD(other.parameters(), 0.1), run_dir=tmp_path / "again", quiet=True)
    fresh.restore(stopped.value.checkpoint)
    assert all(torch.equal(a, b) for a, b in zip(weights, other.parameters(), strict=True))


def test_the_users_exception_leaves_no_half_done_step(tmp_path: Path) -> None:
    model = CNN()
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), run_dir=tmp_path, quiet=True)
    x, y = images(1)[0]

    def fails() -> Tensor:
        model(x * math.inf)
        raise KeyError("the user's own error")

    before = [b.clone() for b in model.buffers()]
    with pytest.raises(KeyError, match="own error"):
        guard.step(fails)
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))
    assert guard.step(lambda: F.cross_entropy(model(x), y)).applied


def test_observed_tensors_are_in_the_record_and_the_incident(tmp_path: Path) -> None:
    model = CNN()
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), run_dir=tmp_path, quiet=True)
    for i, (x, y) in enumerate(images(4)):

        def loss(x: Tensor = x, y: Tensor = y, i: int = i) -> Tensor:
            features = model.features(x * (NAN if i == 2 else 1))
            guard.observe(features=features, scale=torch.tensor([1.5, -2.0]))
            return F.cross_entropy(model.head(features), y)

        guard.step(loss)
    guard.close()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "event" not in line]
    assert all(step["observed"]["scale"] == [-2.0, 1.5] for step in steps)
    assert steps[0]["observed"]["features"][0] == 0.0
    assert steps[2]["observed"]["features"] == ["nan", "nan"]
    incident = json.loads((tmp_path / "incidents" / "0001" / "incident.json").read_text())
    assert incident["history"][-1]["observed"]["features"] == ["nan", "nan"]


def test_a_bad_component_is_left_out_loudly(tmp_path: Path) -> None:
    """The fallback some trainings want: cross entropy alone while distillation fails. Counted, located, bounded."""
    net = nn.Linear(4, 1)
    data = line_data(30)
    policy = Policy(bad_component="leave-out")
    guard = Guard(net, torch.optim.SGD(net.parameters(), 0.05), policy=policy, run_dir=tmp_path, quiet=True)

    def parts(i: int) -> dict[str, Tensor]:
        x, y = data[i]
        divisor = 0.0 if i in (7, 8) else 1.0
        return {"mse": F.mse_loss(net(x), y), "kd": 0.1 * net(x).sub(net(x)).sum() / divisor}

    results = [guard.step(lambda i=i: parts(i), batch=data[i]) for i in range(30)]
    assert all(result.applied for result in results)
    assert [i for i, r in enumerate(results) if r.action == "leave-out"] == [7, 8]
    assert guard.counters.left_out == 2 and guard.counters.skipped == 0
    incident = results[7].incident
    assert incident is not None and incident.birth is not None and "divisor" in (incident.birth.source or "")
    assert len(list((tmp_path / "incidents").iterdir())) == 1
    assert F.mse_loss(net(data[0][0]), data[0][1]) < 0.1


def test_leaving_out_is_bounded(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    x, y = line_data(1)[0]
    guard = Guard(
        net,
        torch.optim.SGD(net.parameters(), 0.05),
        policy=Policy(bad_component="leave-out", stop_after=5, lower_lr_after=None, rollback_after=None),
        run_dir=tmp_path,
        quiet=True,
    )
    with pytest.raises(RunStopped, match="5 failures in a row"):
        for _ in range(20):
            guard.step(lambda: {"mse": F.mse_loss(net(x), y), "kd": net(x).sum() * NAN})
    assert guard.counters.left_out == 5 and guard.counters.skipped == 5
