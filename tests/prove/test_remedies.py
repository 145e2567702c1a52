"""Remedies around a run: each on a script that fails for the reason that it is for."""

import gc
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import nn
from trials.cures import IS, NAMED, is_of_the_kind

import preloaded
import prove
from stayfinite.findings.trial import ProofReport, Tried
from stayfinite.remedies.bounded_growth import LARGEST, BoundedGrowth
from stayfinite.remedies.lower_rate import LowerRate
from stayfinite.remedies.reapplied_rate import ReappliedRate
from stayfinite.remedies.remedy import Remedy, all_remedies
from stayfinite.remedies.scaler_floor import ScalerFloor
from stayfinite.remedies.warm_up import UPDATES, WarmUp

LOOP = """
for step in range({steps}):
    loss = {loss}
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
HEAD = "import torch\nfrom torch import nn\n\ntorch.manual_seed(0)\n"
TOO_FAST = (
    HEAD
    + """net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.RMSprop(net.parameters(), lr=0.8, alpha=0.999)
x = torch.randn(64, 4)
"""
    + LOOP.format(steps=30, loss="(torch.exp(net(x)) - 2 * net(x)).mean()")
)
RESUMED = (
    HEAD
    + """net = nn.Linear(8, 1)
old = torch.optim.SGD(net.parameters(), lr=30.0)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
opt.load_state_dict(old.state_dict())
x = torch.randn(64, 8)
"""
    + LOOP.format(steps=40, loss="(net(x) - x.sum(1, keepdim=True)).pow(2).mean()")
)
ABSURD_RATE = (
    HEAD
    + """layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.LeakyReLU(0.2))]
net = nn.Sequential(*layers, nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 1e12)
"""
    + LOOP.format(steps=12, loss="net(torch.randn(16, 8)).pow(2).mean()")
)
SCALE_ENDED = (
    HEAD
    + """net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-135)
for step in range(12):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    if step < 1:
        loss = loss + torch.sqrt((net.weight * 0).sum())  # a finite loss, and no gradient that is
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""
)
POISONED = (
    HEAD
    + """net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(12):
    x = torch.randn(8, 4)
    if step == 3:
        with torch.no_grad():
            net.weight.mul_(1e30)
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
)
ROW = (
    HEAD
    + """net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
table = torch.randn(96, 4)
table[20, 1] = float("nan")
data = torch.utils.data.TensorDataset(table, torch.randn(96, 1))
for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=8)):
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
)
UNKNOWN_LABEL = (
    HEAD
    + """net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
dose = torch.randn(96, 1)
dose[20] = float("nan")
data = torch.utils.data.TensorDataset(torch.randn(96, 4), dose)
for x, y in torch.utils.data.DataLoader(data, batch_size=8):
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
)
UNKNOWN_LABEL_OF_AN_ARRAY = (
    HEAD
    + """import numpy as np
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
inputs, doses = np.random.RandomState(0).randn(12, 8, 4), np.ones((12, 8, 1))
doses[3, 2] = np.nan
for x, y in zip(inputs, doses):
    out = net(torch.tensor(x, dtype=torch.float))
    loss = nn.functional.mse_loss(out, torch.tensor(y, dtype=torch.float))
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
)
BLIND = (
    HEAD
    + """net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(8):
    x, m = torch.randn(8, 4), torch.full((8,), 0.0 if step == 4 else 1.0)
    loss = (net(x).squeeze(1).pow(2) * m).sum() / m.sum()
    if step < 0 or loss > 100:
        continue
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
)
NEVER_COUNTED = (
    HEAD
    + """labels = torch.randint(0, 4, (100,))
weights = 1 / torch.bincount(labels, minlength=5).float()
head = nn.Linear(8, 5)
loss = (head(torch.randn(16, 8)).log_softmax(-1).mean(0) * weights).sum()
loss.backward()
"""
)


CONFIDENT = (
    HEAD
    + """logits = (torch.randn(6, 5) * 30).requires_grad_()
student = torch.softmax(logits, -1)
teacher = torch.softmax(torch.randn(6, 5) * 30, -1)
loss = -torch.log(((student * teacher) ** 0.6 / 0.2).sum(-1)).mean()
loss.backward()
bad = not torch.isfinite(logits.grad).all()
"""
)


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


def proof(tmp_path: Path, text: str) -> tuple[ProofReport, dict[str, Tried]]:
    script = tmp_path / "train.py"
    script.write_text(text)
    report = prove.proof_of(script)
    return report, {one.remedy: one for one in report.tried}


@pytest.mark.long
def test_warm_up_is_tried_and_judged_at_the_whole_rate(tmp_path: Path) -> None:
    _, tried = proof(tmp_path, TOO_FAST)
    assert tried["warm-up"].steps > UPDATES
    # Every step is finite with it, but the squares that RMSprop keeps are not any more: that weight never moves again.
    assert tried["warm-up"].verdict == "failed" and "square_avg" in tried["warm-up"].reason
    assert tried["clipping"].verdict == "failed"


def test_the_rate_that_a_checkpoint_brought_is_put_back(tmp_path: Path) -> None:
    report, tried = proof(tmp_path, RESUMED)
    assert report.proved is not None and report.proved.remedy == "reapplied-rate"
    assert tried["lower-rate"].verdict == "failed"


@pytest.mark.long
def test_the_rate_is_taken_from_the_size_of_the_update(tmp_path: Path) -> None:
    """A tenth and a hundredth of 1e12 fail as well; bounding what blocks give would hide one absurd update."""
    report, tried = proof(tmp_path, ABSURD_RATE)
    assert report.proved is not None and report.proved.remedy == "measured-rate"
    assert "in place of 1e+12" in report.proved.sentence and report.proved.steps >= 5
    assert not any(one.proved for name, one in tried.items() if name != "measured-rate")
    assert "bounded-growth" not in tried and tried["much-lower-rate"].verdict == "failed"


def test_a_scale_that_has_become_nothing_gets_a_floor(tmp_path: Path) -> None:
    report, _ = proof(tmp_path, SCALE_ENDED)
    assert report.proved is not None and report.proved.remedy == "scaler-floor"


def test_a_batch_left_out_cures_nothing_if_nothing_trains_any_more(tmp_path: Path) -> None:
    """Every later batch fails, too: `leaves_steps_out` would be finite for ever, and learn nothing."""
    report, tried = proof(tmp_path, POISONED)
    assert tried["skipped-step"].verdict == "failed" and report.proved is None
    assert "reapplied-rate" not in tried  # nothing was loaded there


def test_a_bad_row_is_imputed_where_the_loop_takes_its_batch(tmp_path: Path) -> None:
    report, tried = proof(tmp_path, ROW)
    assert report.proved is not None and report.proved.remedy == "imputed" and report.patch is not None
    assert "+    x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)\n" in report.patch
    assert tried["skipped-step"].verdict == "failed"  # the running statistics hold the NaN


def test_a_sample_of_which_nothing_is_known_is_not_learnt_as_zeros(tmp_path: Path) -> None:
    """Normalised by its own range of 0, as silence is."""
    _, tried = proof(tmp_path, ROW.replace("table[20, 1]", "table[20]"))
    assert tried["imputed"].verdict != "proved" and "would be learnt as 0" in tried["imputed"].reason


def test_a_label_that_nobody_knows_is_not_learnt_as_zero(tmp_path: Path) -> None:
    report, tried = proof(tmp_path, UNKNOWN_LABEL)
    assert tried["imputed"].verdict != "proved" and "learnt as 0" in tried["imputed"].reason
    assert report.proved is not None and report.proved.remedy in ("dropped-samples", "skipped-step")


def test_nor_is_one_that_came_without_a_loader(tmp_path: Path) -> None:
    report, tried = proof(tmp_path, UNKNOWN_LABEL_OF_AN_ARRAY)
    assert "imputed" not in tried or "learnt as 0" in tried["imputed"].reason
    assert report.proved is None or report.proved.remedy != "imputed"


def test_a_guard_that_lets_nan_pass_is_turned_round(tmp_path: Path) -> None:
    report, _ = proof(tmp_path, BLIND)
    assert report.proved is not None and report.proved.remedy == "seeing-guard"
    assert report.patch is not None and "if step < 0 or (not loss <= 100):" in report.patch
    assert prove.patched_runs(tmp_path / "train.py", report.patch, preloaded.run) == "clean"


def test_a_class_that_never_occurs_is_counted_once(tmp_path: Path) -> None:
    report, _ = proof(tmp_path, NEVER_COUNTED)
    assert report.proved is not None and report.proved.remedy == "smoothed-count"


def test_a_power_of_a_product_is_taken_factor_by_factor(tmp_path: Path) -> None:
    """A floor under the product is finite, too, but where the product underflows it gives no gradient."""
    report, tried = proof(tmp_path, CONFIDENT)
    assert report.proved is not None and report.proved.remedy == "power-of-factors"
    assert report.proved.gradient is True and report.proved.distortion is not None
    assert report.proved.distortion < 1e-6
    assert tried["eps-inside"].verdict in ("no gradient", "distorts")
    assert (
        report.patch is not None
        and prove.patched_runs(tmp_path / "train.py", report.patch, preloaded.run) == "clean"
    )


def entered(remedy: Remedy) -> AbstractContextManager[None]:
    context = remedy.applied()
    assert context is not None
    return context


def test_outputs_are_bounded_sample_by_sample() -> None:
    net = nn.Linear(2, 3)
    x = torch.tensor([[1.0, 1.0], [1e20, 1.0]])
    plain = net(x).detach()
    with entered(BoundedGrowth()):
        bounded = net(x)
        small = net(x[:1])
    # a healthy sample is the same bit for bit
    assert torch.equal(bounded[0], plain[0]) and torch.equal(small, plain[:1])
    torch.testing.assert_close(bounded[1].detach().abs().max(), torch.tensor(LARGEST))
    torch.testing.assert_close(
        bounded[1].detach() / plain[1], torch.full((3,), LARGEST / plain[1].abs().max().item())
    )
    bounded[1].sum().backward()  # type: ignore[no-untyped-call]
    assert net.weight.grad is not None and bool((net.weight.grad != 0).any())
    assert torch.equal(net(x), plain)


def test_rates_are_as_before_between_updates() -> None:
    net = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    moved = []
    with entered(WarmUp()):
        for _ in range(UPDATES + 2):
            before = net.weight.item()
            net.weight.grad = torch.ones(1, 1)
            optimizer.step()
            moved.append(before - net.weight.item())
            assert (
                optimizer.param_groups[0]["lr"] == 1.0 and "_stayfinite_rate" not in optimizer.param_groups[0]
            )
    wanted = [min(1.0, (n + 1) / UPDATES) for n in range(UPDATES + 2)]
    assert moved == pytest.approx(wanted, rel=1e-4)
    with entered(LowerRate()), pytest.raises(ZeroDivisionError):
        raise ZeroDivisionError
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_torch_is_as_it_was_after_every_remedy() -> None:
    from torch.amp.grad_scaler import GradScaler

    patched = (
        (torch.optim.Optimizer, "load_state_dict"),
        (GradScaler, "update"),
        (torch.autocast, "__enter__"),
    )
    before = [getattr(owner, name) for owner, name in patched]
    for remedy in all_remedies():
        context = remedy.applied()
        if context is not None:
            with pytest.raises(ZeroDivisionError), context:
                raise ZeroDivisionError
    assert before == [getattr(owner, name) for owner, name in patched]
    assert ScalerFloor.name and ReappliedRate.name


def test_the_table_of_kinds_names_remedies_that_exist() -> None:
    assert set(IS) <= {one.name for one in all_remedies()}
    assert {kind for kinds in IS.values() for kind in kinds} <= set(NAMED)
    fact = {"fix_summary": "sqrt(var + eps)", "birth_lines": [3]}
    assert is_of_the_kind("eps-inside", fact, 3) and not is_of_the_kind("clipping", fact, 3)
    assert is_of_the_kind("log-space + log-floor", fact, 3)
