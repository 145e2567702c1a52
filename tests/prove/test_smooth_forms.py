"""Whether the right fix gives the failing sample a gradient: asked of the mechanism and of where the bad value goes."""

import gc
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stayfinite.findings.trial import ProofReport, Tried
from stayfinite.launch.beginning import Beginning
from stayfinite.launch.options import Options
from stayfinite.launch.trial import run_trial
from stayfinite.prove import candidates
from stayfinite.prove.attempted import Attempted
from stayfinite.prove.comparison import compare
from stayfinite.prove.counterfactual import Counterfactual
from stayfinite.prove.judgement import has_smooth_form, judged
from stayfinite.prove.stage import Stage, brink_part, case_at, stage_of
from stayfinite.prove.trial import Plan
from stayfinite.prove.trials import Trials
from stayfinite.remedies.bounded_exponent import BoundedExponent
from stayfinite.remedies.float32_operation import Float32Operation
from stayfinite.remedies.float64_operation import Float64Operation
from stayfinite.remedies.log_floor import LogFloor
from stayfinite.remedies.max_subtraction import MaxSubtraction
from stayfinite.remedies.remedy import Case

HEAD = """import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
"""
LOOP = """net = nn.Linear(6, 5){half}
opt = torch.optim.SGD(net.parameters(), 1e-3)
bad = False
for step in range(5):
    x = torch.randn(8, 6){half}
    y = torch.randint(0, 5, (8,))
    if step == 2:
        x[3] *= 400
    loss = loss_of(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    bad = bad or not torch.isfinite(loss).item()
"""


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


@pytest.fixture
def state() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        Beginning().save(Path(folder) / "state")
        yield Path(folder) / "state"


def written(folder: Path, loss: str, half: str = "") -> Path:
    script = folder / "train.py"
    script.write_text(HEAD + f"def loss_of(out, y):\n{loss}\n" + LOOP.format(half=half))
    return script


def failure(folder: Path, state: Path, loss: str, half: str = "") -> tuple[Stage, Case]:
    result = run_trial(Options(str(written(folder, loss, half))), state, Plan(), 60.0)
    stage = stage_of(result, None)
    assert stage is not None, result
    return stage, case_at(stage)


def report_on(folder: Path, state: Path, loss: str) -> ProofReport:
    options = Options(str(written(folder, loss)))
    return Counterfactual(lambda plan, left: run_trial(options, state, plan, left), 60.0).report()


SMOOTH = {
    "log of a sum": "    return (out.exp().sum(1).log() - out[:, 0]).mean()",
    "ratio": "    e = torch.exp(out)\n    return F.mse_loss(e / e.sum(1, keepdim=True), F.one_hot(y, 5).float())",
    "log of a softmax": "    return -torch.softmax(out, 1).log().mean()",
}
ROUGH = {
    "a rate that is a term of the loss": "    r = torch.exp(out[:, 0])\n    return (r - y * torch.log(r)).mean()",
    "nothing learnt": "    return out.mean() * out.detach().exp().sum(1).log().mean()",
    "log of a rectified value": "    return -(torch.relu(out) + 0.0).log().mean()",
    "scaled": "    return (torch.exp(out) / 8.0).mean()",
}


@pytest.mark.parametrize("name", [*SMOOTH, *ROUGH])
def test_a_smooth_form_exists(tmp_path: Path, state: Path, name: str) -> None:
    _, case = failure(tmp_path, state, {**SMOOTH, **ROUGH}[name])
    assert has_smooth_form(case) is (name in SMOOTH), (case.kind, case.step.narrows)


def attempted(*remedies: type, learns: bool | None) -> Attempted:
    made = tuple(remedy() for remedy in remedies)
    tried = Tried(remedy=" + ".join(one.name for one in made), sentence="", verdict="proved")
    return Attempted(made, {}, tried, learns)


def test_what_cuts_off_is_not_proved_where_a_smooth_form_exists(tmp_path: Path, state: Path) -> None:
    for loss, verdict in ((SMOOTH["ratio"], "no gradient"), (ROUGH["scaled"], "proved")):
        _, case = failure(tmp_path, state, loss)
        done = [
            attempted(BoundedExponent, learns=False),
            attempted(BoundedExponent, LogFloor, learns=None),
            attempted(MaxSubtraction, learns=False),  # saturated: a gradient of 0 is what the right form has
        ]
        compare(done, case)
        assert [one.tried.verdict for one in done] == [verdict, verdict, "proved"]


def test_no_cure_becomes_one_by_another_on_top(tmp_path: Path, state: Path) -> None:
    stage, case = failure(tmp_path, state, SMOOTH["log of a sum"])
    clean = run_trial(
        Options(str(written(tmp_path, "    return (torch.logsumexp(out, 1) - out[:, 0]).mean()"))),
        state,
        Plan(),
        60.0,
    )
    assert judged(stage, clean, case, (LogFloor(),), 0.0, control=False)[0] == "proved"
    assert judged(stage, clean, case, (Float64Operation(), LogFloor()), 0.0, control=False)[0] == "unclear"


def test_only_the_same_formula_may_move_by_what_half_precision_rounds(tmp_path: Path, state: Path) -> None:
    """0.02 is less than half of the digits of float16, and more than a change of the formula may move."""
    stage, case = failure(tmp_path, state, "    return (out * 100).square().mean().float()", ".half()")
    assert case.in_half
    clean = run_trial(
        Options(str(written(tmp_path, "    return out.float().tanh().mean()", ".half()"))),
        state,
        Plan(),
        60.0,
    )
    wider, floor = Float32Operation(), LogFloor()
    verdicts = {
        moved: [
            judged(stage, clean, case, r, moved, control=False)[0]
            for r in ((wider,), (floor,), (floor, wider))
        ]
        for moved in (0.005, 0.02, 0.05)
    }
    assert verdicts == {
        0.005: ["proved"] * 3,
        0.02: ["proved", "distorts", "distorts"],
        0.05: ["distorts"] * 3,
    }


def test_more_range_is_no_control_of_what_fails_in_half(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "_CONTROLS", 1000)
    wider = {}
    for half in ("", ".half()"):
        stage, case = failure(tmp_path, state, "    return (out / (0 * y.sum())).float().mean()", half)
        trials = Trials(lambda plan, left: run_trial(Options("train.py"), state, plan, left), 60.0)
        chosen = candidates.Candidates(trials, str, past=True)._controls(case, [], stage)
        assert len(chosen) >= 2
        wider[half] = {one.remedy.name for one in chosen if one.remedy.only_wider}
    assert not wider[".half()"] and wider[""]


def test_what_vanished_beside_what_overflowed_is_part_of_the_failure(tmp_path: Path, state: Path) -> None:
    """A group whose exponentials are all 0 has other weights in the right form. In a healthy batch it may not."""
    _, case = failure(tmp_path, state, SMOOTH["ratio"])
    bad, healthy = torch.tensor([math.inf, 0.0, 0.5]), torch.tensor([0.0, 0.5])
    near = brink_part(bad, case)
    assert near is not None and near.tolist() == [False, True, False]
    assert brink_part(healthy, case) is None


@pytest.mark.long
def test_a_sum_that_no_form_is_known_for_is_not_proved(tmp_path: Path, state: Path) -> None:
    pooled = "    return F.avg_pool1d(torch.exp(out)[:, None], 5).log().mean() - out.mean()"
    report = report_on(tmp_path, state, pooled)
    verdicts = {one.remedy: one.verdict for one in report.tried if not one.control}
    assert report.proved is None and verdicts["bounded-exponent"] == "no gradient", verdicts
    assert "gets no gradient" in report.remark


@pytest.mark.long
def test_log_space_is_found_along_the_values(tmp_path: Path, state: Path) -> None:
    loss = "    total = torch.zeros(8)\n    for k in range(5):\n        total += torch.exp(out[:, k])\n"
    report = report_on(tmp_path, state, loss + "    return (torch.log(total) - out[:, 0]).mean()")
    assert report.proved is not None and report.proved.remedy == "log-space" and report.patch is None


@pytest.mark.long
def test_a_ratio_of_exponentials_is_a_patch(tmp_path: Path, state: Path) -> None:
    loss = "    a, b = out[:, 0], out[:, 1]\n    one = torch.exp(a)\n    p = one / (one + torch.exp(b))\n"
    report = report_on(tmp_path, state, loss + "    return (p - 0.5).square().mean()")
    assert report.proved is not None and report.proved.remedy == "log-space-ratio"
    assert report.patch is not None and "logaddexp" in report.patch
