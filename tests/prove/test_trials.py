"""What a trial costs: which steps are followed, in which order questions are asked, and threads that sleep."""

import gc
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stayfinite.findings.trial import ProofReport
from stayfinite.launch import sleeping_threads
from stayfinite.launch.beginning import Beginning
from stayfinite.launch.options import Options
from stayfinite.launch.trial import run_trial
from stayfinite.prove.counterfactual import Counterfactual, ReportedBirth
from stayfinite.prove.trial import Plan, TrialResult
from stayfinite.prove.trials import Trials

LATE = """import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
for step in range(60):
    x = torch.rand(8, 4)
    keep = torch.zeros(8) if step == 9 else torch.ones(8)
    each = model(x).pow(2).mean(-1)
    loss = (each * keep).sum() / keep.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LINE, STEP = 10, 9
ROWS = """import torch
from torch import nn
torch.manual_seed(0)
first, head = nn.Linear(4, 3), nn.Linear(3, 2)
optimizer = torch.optim.SGD([*first.parameters(), *head.parameters()], 1e-2)
for step in range(4):
    x = torch.randn(6, 4)
    h = first(x).half() + torch.tensor([[0.0], [0.0], [0.0], [0.0], [-6.0], [15.0]]).half()
    gates = torch.exp(h)
    weights = gates / gates.sum(dim=-1, keepdim=True)
    loss = head(weights.float()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SUBNORMAL = """import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
for step in range(5):
    x = torch.rand(6, 4)
    small = torch.tensor([1.0, 1.0, 1e-20, 1e-20, 1e-20, 1e-20])
    factor = torch.tensor([1.0, 1.0, 1e-23, 1e-24, 1.0, 0.0 if step == 3 else 1.0])
    p = torch.sigmoid(model(x)).squeeze(-1) * small * factor
    loss = -torch.log(p).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        Beginning().save(Path(folder) / "state")
        yield Path(folder) / "state"


def proof(
    tmp_path: Path, state: Path, text: str, place: ReportedBirth | None
) -> tuple[ProofReport, list[Plan]]:
    """The report on a script, and every plan that was run for it."""
    script = tmp_path / "train.py"
    script.write_text(text)
    plans: list[Plan] = []

    def run(plan: Plan, seconds: float) -> TrialResult:
        plans.append(plan)
        return run_trial(Options(str(script)), state, plan, seconds)

    return Counterfactual(run, 60.0).report(place), plans


def test_a_reported_birth_is_never_followed_from_the_begin(tmp_path: Path, state: Path) -> None:
    place = ReportedBirth(str(tmp_path / "train.py"), LINE, STEP, "aten.div.Tensor")
    report, plans = proof(tmp_path, state, LATE, place)
    assert report.proved is not None and report.proved.remedy == "guarded-division"
    assert report.proved.steps >= 20
    assert all(plan.follow_from == STEP - 2 for plan in plans)
    assert all(plan.follow_until == STEP + 1 for plan in plans if plan.texts)


def test_a_birth_elsewhere_than_reported_is_found_by_following_all(tmp_path: Path, state: Path) -> None:
    place = ReportedBirth(str(tmp_path / "train.py"), LINE, STEP, "aten.log.default")
    report, plans = proof(tmp_path, state, LATE, place)
    assert (plans[0].follow_from, plans[1].follow_from) == (STEP - 2, None)
    assert report.proved is not None and report.line == LINE


def test_a_failure_after_the_followed_steps_is_located(tmp_path: Path, state: Path) -> None:
    again = LATE.replace("step == 9", "step in (9, 17)").replace(
        "/ keep.sum()", "/ (keep.sum() + (step == 9))"
    )
    broken = LATE.replace("step == 9", "step == 17")
    script = tmp_path / "train.py"
    script.write_text(LATE)
    trials = Trials(lambda plan, seconds: run_trial(Options(str(script)), state, plan, seconds), 60.0)
    trials.follow_around(STEP, from_the_begin=False)
    for text in (again, broken):
        plan = Plan({os.path.realpath(script): text})
        watched = trials(plan)
        assert [one.step for one in watched.failures] == [17] and not watched.failures[0].judged
        found = trials.located(plan, watched)
        assert found.failures[0].judged[0].birth.birth.line == LINE


@pytest.mark.long
def test_the_maximum_is_that_of_each_row_and_wider_dtypes_are_no_controls(
    tmp_path: Path, state: Path
) -> None:
    report, _ = proof(tmp_path, state, ROWS, None)
    tried = {one.remedy: one for one in report.tried if not one.control}
    assert tried["max-subtracted"].verdict == "proved" and not report.worthless
    assert not {one.remedy for one in report.tried if one.control} & {"bfloat16", "float32"}


def test_logarithms_of_subnormal_numbers_are_part_of_the_failure(tmp_path: Path, state: Path) -> None:
    report, _ = proof(tmp_path, state, SUBNORMAL, None)
    tried = {one.remedy: one for one in report.tried}
    assert tried["log-floor"].distortion == 0.0 and math.isfinite(tried["log-floor"].loss or math.nan)


COMPILER = """def compiler(graph, inputs):
    raise SystemExit(3)
square = torch.compile(lambda t: t * t, backend=compiler)
optimizer ="""
COMPILED = LATE.replace("optimizer =", COMPILER).replace("model(x).pow(2)", "square(model(x))")


def test_steps_that_nobody_follows_are_not_compiled(tmp_path: Path, state: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(COMPILED.replace("step == 9", "False"))
    result = run_trial(Options(str(script)), state, Plan(until=6, follow_until=2), 60.0)
    assert result.clean and result.steps == 6


RESUMED = """import os
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
begin = torch.load("last.pt")["step"]
for step in range(begin, 4):
    loss = net(torch.randn(8, 4)).pow(2).mean() * (float("nan") if step == 1 else 1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"step": step + 1}, "last.pt")
os.remove("old.txt")
with open("log.txt", "a") as log: log.write("again")
with open("new.txt", "w") as new: new.write("made")
"""


def test_what_a_trial_does_to_files_is_undone_before_the_next_one(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second trial resumed from what the first one had saved, after the failing step, and did not fail."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(RESUMED)
    torch.save({"step": 0}, "last.pt")
    for name in ("old.txt", "log.txt"):
        Path(name).write_text("before")
    seen = [run_trial(Options("train.py"), state, Plan(), 60.0, in_a_copy=True) for _ in range(2)]
    assert [bool(one.failures) for one in seen] == [True, True]
    assert torch.load("last.pt")["step"] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "last.pt", "old.txt", "log.txt"}
    assert Path("old.txt").read_text() == Path("log.txt").read_text() == "before"


NOTHING_SELECTED = """import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 1)
scores = net(torch.randn(9, 4)).squeeze(1)
hard = scores > 1e6
loss = scores.pow(2).mean() + 0.1 * scores[hard].mean() + 0.1 * torch.mean(scores[hard] - 1)
loss.backward()
"""


def test_a_mean_of_what_is_selected_in_place_is_guarded(tmp_path: Path, state: Path) -> None:
    report, _ = proof(tmp_path, state, NOTHING_SELECTED, None)
    assert report.proved is not None and report.proved.remedy == "guarded-mean"
    assert "+loss = scores.pow(2).mean() + 0.1 * ((chosen" in (report.patch or "")  # what is healthy stays


def test_threads_sleep_and_the_script_does_not_see_why(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = sleeping_threads.with_sleeping_threads({"HOME": "/"})
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert sleeping_threads.with_sleeping_threads({"KMP_BLOCKTIME": "5"}) == {"KMP_BLOCKTIME": "5"}
    before = dict(os.environ)
    for name, value in environment.items():
        monkeypatch.setenv(name, os.environ.get(name, value) if name == "HOME" else value)
    sleeping_threads.forget()
    assert dict(os.environ) == before
