"""What a checkpoint brought that was not finite: said at the load, before what came of it; masks are none of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rules.watched import incidents_of
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import LoadEvent, Place, RunRecord, StepRecord

_RESUMED = """
    import copy
    def made(lr):
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        return net, torch.optim.AdamW(net.parameters(), lr)
    net, opt = made(1e-3)
    for i in range(3):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    saved = copy.deepcopy({"net": net.state_dict(), "opt": opt.state_dict()})
    SPOIL
    net, opt = made(6e-3)
    net.load_state_dict(saved["net"])
    opt.load_state_dict(saved["opt"])  #!
    for i in range(AFTER):
        for group in opt.param_groups: group["lr"] = 1e-3  # what a schedule of the script's own says here
        loss = net(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad(); loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if not math.isfinite(loss.item()): break
"""


def _script(spoil: str, after: int = 4) -> str:
    return _RESUMED.replace("SPOIL", spoil).replace("AFTER", str(after))


def test_a_moment_of_the_file_is_told_at_the_load_and_the_file_s_learning_rate_is_not_blamed(
    tmp_path: Path,
) -> None:
    spoil = 'saved["opt"]["state"][0]["exp_avg"][0, 1] = float("nan")'
    incidents = incidents_of(_script(spoil), tmp_path)
    first = incidents[0].findings[0]
    lines = (tmp_path / "script.py").read_text().splitlines()
    assert (first.code, first.cause) == ("STA032", "STATE_POISONED")
    assert "exp_avg of parameter 0" in first.message
    assert first.line is not None and "#!" in lines[first.line - 1]
    told = {finding.code for incident in incidents for finding in incident.findings}
    assert "STA027" not in told, "no update was made with what the file brought"


def test_a_norm_that_was_bad_after_the_failing_step_is_not_told_of_it(tmp_path: Path) -> None:
    spoil = 'saved["opt"]["state"][0]["exp_avg"][0, 1] = float("nan")'
    incidents = incidents_of(_script(spoil), tmp_path)
    assert incidents[0].trigger == "parameter"
    assert "STA025" not in {finding.code for finding in incidents[0].findings}


def test_a_mask_of_the_file_did_not_make_the_data_bad(tmp_path: Path) -> None:
    incidents = incidents_of(
        """
        class Masked(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 4)
                self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
            def forward(self, x):
                return (self.inner(x) + self.mask).softmax(-1)
        net = Masked()
        net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for i in range(3):
            x = torch.randn(4, 4)
            if i == 2: x[0, 0] = float("nan")
            loss = net(x).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
        """,
        tmp_path,
    )
    assert incidents[0].findings[0].cause == "DATA_NONFINITE"
    assert "STA032" not in {finding.code for incident in incidents for finding in incident.findings}


_STATISTICS = """
    import copy
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    saved = copy.deepcopy(net.state_dict())
    saved["1.running_var"][1] = float("nan")
    net.load_state_dict(saved)  #!
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for i in range(6):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    net.eval()
    score = net(torch.randn(8, 4)).mean()
    print(score.item())
"""


def test_a_running_statistic_of_the_file_was_not_made_by_the_run(tmp_path: Path) -> None:
    first = incidents_of(_STATISTICS, tmp_path)[0].findings[0]
    lines = (tmp_path / "script.py").read_text().splitlines()
    assert first.code == "STA032" and first.line is not None and "#!" in lines[first.line - 1]
    assert "STA011" not in {finding.code for finding in incidents_of(_STATISTICS, tmp_path)[0].findings}


_BIT = """
    import copy
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    saved = copy.deepcopy(net.state_dict())
    saved["0.weight"][1, 2] = SIZE
    net.load_state_dict(saved)  #!
    opt = torch.optim.Adam(net.parameters(), 0.01)
    for i in range(3):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""


def test_a_finite_weight_of_absurd_size_is_the_file_s_and_no_rate_s(tmp_path: Path) -> None:
    findings = incidents_of(_BIT.replace("SIZE", "2.9e38"), tmp_path)[0].findings
    lines = (tmp_path / "script.py").read_text().splitlines()
    first = findings[0]
    assert (first.code, first.cause) == ("STA043", "CHECKPOINT_CORRUPT") and "0.weight" in first.message
    assert first.line is not None and "#!" in lines[first.line - 1]
    # what the update of this traced run made of its gradients is no state that the file brought
    assert not {"STA011", "RUN010", "NUM016"} & {finding.code for finding in findings}


def test_a_usual_weight_of_the_file_is_not_spoken_of(tmp_path: Path) -> None:
    assert incidents_of(_BIT.replace("SIZE", "40.0"), tmp_path) == []


def test_a_norm_of_finite_gradients_overflows_because_of_the_file(tmp_path: Path) -> None:
    place = Place("train.py", 7)
    enormous = LoadEvent("module", place, 0, enormous=(("head.weight", 1e30),))
    step = FailedStep(0, "backward", "gradient", RunRecord(loads=(enormous,)), norm_overflowed=True)
    assert [finding.code for finding in explain(step)] == ["STA043", "RUN020"]
    usual = FailedStep(
        0, "backward", "gradient", RunRecord(loads=(LoadEvent("module", place, 0),)), norm_overflowed=True
    )
    assert [finding.code for finding in explain(usual)] == ["RUN020"]


_HIDDEN = """
    import copy
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 1))
    saved = copy.deepcopy(net.state_dict())
    saved["0.weight"][1, 0, 0, 0] = SIZE
    net.load_state_dict(saved)  #!
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for i in range(3):
        loss = net(torch.randn(4, 1, 8, 8)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""


def test_a_weight_that_a_batch_norm_hides_is_the_cause_of_its_infinite_variance(tmp_path: Path) -> None:
    findings = incidents_of(_HIDDEN.replace("SIZE", "1e38"), tmp_path)[0].findings
    lines = (tmp_path / "script.py").read_text().splitlines()
    first = findings[0]
    assert first.code == "STA043" and first.line is not None and "#!" in lines[first.line - 1]
    assert "DAT011" not in {finding.code for finding in findings}, "a running mean is no input"
    assert incidents_of(_HIDDEN.replace("SIZE", "0.3"), tmp_path) == []


def test_a_negative_variance_of_the_file_is_told_although_only_the_evaluation_met_it(tmp_path: Path) -> None:
    script = _STATISTICS.replace('float("nan")', "-5.0")
    first = incidents_of(script, tmp_path)[0].findings[0]
    lines = (tmp_path / "script.py").read_text().splitlines()
    assert first.code == "STA045" and "of -5 in 1.running_var" in first.message
    assert first.line is not None and "#!" in lines[first.line - 1]
    assert incidents_of(_STATISTICS.replace('float("nan")', "0.0"), tmp_path) == []


_TEACHER = """
    import copy
    torch.manual_seed(0)
    def made():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    teacher, student = made().eval(), made()
    saved = copy.deepcopy(teacher.state_dict())
    saved["1.running_var"][1] = VALUE
    FILE
    opt = torch.optim.SGD(student.parameters(), 0.01)
    for i in range(3):
        x = torch.randn(8, 4)
        with torch.no_grad():
            wanted = teacher(x)
        loss = F.mse_loss(student(x), wanted)
        opt.zero_grad(); loss.backward(); opt.step()
"""


def test_a_negative_variance_of_a_teacher_is_the_file_s_or_whoever_wrote_it(tmp_path: Path) -> None:
    loaded = _TEACHER.replace("FILE", "teacher.load_state_dict(saved)")
    incident = incidents_of(loaded.replace("VALUE", "-3.0"), tmp_path)[0]
    assert [finding.code for finding in incident.findings][:2] == ["STA045", "NUM013"]
    assert incident.birth is not None and "batch_norm" in incident.birth.op
    written = _TEACHER.replace("FILE", "teacher[1].running_var.sub_(4.0)").replace("VALUE", "1.0")
    first = incidents_of(written, tmp_path)[0].findings[0]
    assert first.code == "NUM013" and "3 negative values in its running variance" in first.message
    assert "running_var" in first.fix
    assert incidents_of(loaded.replace("VALUE", "0.5"), tmp_path) == []


_WHOLE = """
    import tempfile
    file = tempfile.NamedTemporaryFile()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    with torch.no_grad():
        net[0].weight[1, 2] = VALUE
    torch.save({"model": net, "epoch": 3}, file.name)
    net = torch.load(file.name, weights_only=False)["model"]  #!
    opt = torch.optim.Adam(net.parameters(), 0.01)
    for i in range(3):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.parametrize(("value", "code"), [("float('nan')", "STA032"), ("1e36", "STA043")])
def test_a_whole_model_of_a_file_is_a_load(tmp_path: Path, value: str, code: str) -> None:
    first = incidents_of(_WHOLE.replace("VALUE", value), tmp_path)[0].findings[0]
    lines = (tmp_path / "script.py").read_text().splitlines()
    assert first.code == code and "0.weight" in first.message
    assert first.line is not None and "#!" in lines[first.line - 1]
    assert incidents_of(_WHOLE.replace("VALUE", "0.5"), tmp_path) == []


def test_weights_that_a_file_spoilt_are_not_called_finite(tmp_path: Path) -> None:
    incidents = incidents_of(
        """
        import copy
        policy = nn.Linear(3, 2)
        old = nn.Linear(3, 2)
        opt = torch.optim.Adam(policy.parameters())
        old.load_state_dict(policy.state_dict())
        saved = copy.deepcopy(policy.state_dict())
        saved["weight"][1, 1] = float("nan")
        old.load_state_dict(saved)
        policy.load_state_dict(saved)
        with torch.no_grad():
            chosen = torch.distributions.Normal(old(torch.randn(1, 3)), 1.0).sample()
        loss = (policy(torch.randn(1, 3)) - chosen).pow(2).mean()
        loss.backward(); opt.step()
        """,
        tmp_path,
    )
    assert incidents and incidents[0].findings[0].code == "STA032"
    told = [finding.message for incident in incidents for finding in incident.findings]
    assert not [message for message in told if "while the weights are finite" in message], told


def test_an_absurd_rate_of_the_file_is_the_file_s() -> None:
    losses = (2.9, *(1e7 + i for i in range(30)))
    run = RunRecord(
        history=tuple(
            StepRecord(i, loss, lr=500.0, update_ratio=1.7e4 if i == 0 else 0.5)
            for i, loss in enumerate(losses)
        ),
        loads=(
            LoadEvent("optimizer", Place("train.py", 7), 0, lr_before=1e-3, lr_after=500.0, lr_used=500.0),
        ),
        complete=True,
    )
    step = FailedStep(31, "state", "parameter", run)
    assert [finding.code for finding in explain(step)][:2] == ["STA027", "RUN010"]
    own = FailedStep(31, "state", "parameter", replace(run, loads=()))
    assert next(finding.code for finding in explain(own)) == "RUN010"
