"""Proof inside of a training: blame, culprits and remedies, and the training state bit for bit as it was."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard
from stayfinite.findings import Incident
from stayfinite.guarding import proof
from stayfinite.sandbox.fork import obstacle

pytestmark = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


@pytest.fixture(autouse=True)
def _proofs_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAYFINITE_PROVE", raising=False)


def entropy(model: nn.Module, batch: Tensor) -> Tensor:
    p = torch.softmax(model(batch), -1)
    return -(p * torch.log(p)).sum(-1).mean()


def squared(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).pow(2).mean()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    moments = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
    found = [*model.parameters(), *model.buffers(), *moments, torch.get_rng_state()]
    return [tensor.detach().clone() for tensor in found]


def failed(
    folder: Path,
    seed: int,
    step: Callable[[nn.Module, Tensor], Tensor],
    spoil: Callable[[nn.Module, Tensor], None],
    model: nn.Module | None = None,
    batch: int = 8,
    **settings: object,
) -> tuple[Incident, bool]:
    """Train, spoil one step, and give its incident and whether everything is afterwards as it was before."""
    torch.manual_seed(seed)
    model = model or nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard = Guard(model, optimizer, run_dir=folder, quiet=True, **settings)  # type: ignore[arg-type]
    for _ in range(3):
        guard.step(step, model, torch.randn(batch, 4))
    data = torch.randn(batch, 4)
    spoil(model, data)
    before, drawn = everything(model, optimizer), random.getstate()
    result = guard.step(step, model, data)
    same = all(torch.equal(a, b) for a, b in zip(before, everything(model, optimizer), strict=True))
    assert result.incident is not None
    return result.incident, same and drawn == random.getstate()


def bad_sample(model: nn.Module, data: Tensor) -> None:
    data[2] = float("nan")


def sick_weights(model: nn.Module, data: Tensor) -> None:
    with torch.no_grad():
        next(model.parameters()).mul_(1e30)


@pytest.mark.parametrize("runs", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize(("spoil", "wanted"), [(bad_sample, "data"), (sick_weights, "state")])
def test_blame_is_right(
    spoil: Callable[[nn.Module, Tensor], None],
    wanted: str,
    runs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        proof.Counterfactual, "report", lambda self: proof.ProofReport()
    )  # only blame is asked here
    named = [failed(tmp_path / str(seed), seed, squared, spoil)[0].blame for seed in range(runs)]
    assert named == [wanted] * runs


def test_a_step_that_does_not_fail_again_is_flaky(tmp_path: Path) -> None:
    fails = iter([False, False, False, True, True] + [False] * 99)

    def flaky(model: nn.Module, batch: Tensor) -> Tensor:
        loss = model(batch).pow(2).mean()
        return loss * float("nan") if next(fails) else loss

    incident, _ = failed(tmp_path, 0, flaky, lambda model, data: None)
    assert incident.blame == "flaky"
    assert not any(one.proved for one in incident.tried)


def test_the_remedy_is_proved_and_the_training_is_as_it_was(tmp_path: Path) -> None:
    def two_bad(model: nn.Module, data: Tensor) -> None:
        data[17] *= 1e4
        data[40] *= 1e4

    incident, same = failed(tmp_path, 1, entropy, two_bad, batch=64)
    assert same
    assert incident.blame == "data"
    assert incident.birth is not None and incident.birth.samples == (17, 40)
    best = incident.tried[0]
    assert (best.remedy, best.verdict, best.distortion) == ("log-space", "proved", 0.0)
    assert incident.findings[0].proof is not None and incident.findings[0].proof.remedy == "log-space"
    verdicts = {one.remedy: one.verdict for one in incident.tried}
    assert verdicts["log-floor"] == "no gradient"
    assert verdicts["dropped-samples"] == "no gradient"  # log-space lets them learn
    assert incident.patch is not None and "torch.log_softmax(inside, -1)" in incident.patch


def test_a_sample_that_is_bad_data_may_be_left_out(tmp_path: Path) -> None:
    incident, _ = failed(tmp_path, 2, squared, bad_sample)
    assert incident.blame == "data"
    assert {one.remedy: one.verdict for one in incident.tried}["dropped-samples"] == "proved"


def test_nothing_is_tried_when_it_is_off(tmp_path: Path) -> None:
    incident, same = failed(tmp_path, 2, squared, bad_sample, prove="off")
    assert same and incident.tried == [] and incident.blame is None
    with pytest.raises(ValueError, match="Guard\\(prove='always'\\): choose"):
        failed(tmp_path, 2, squared, bad_sample, prove="always")


@pytest.mark.parametrize("raised", [RuntimeError("a remedy broke"), KeyboardInterrupt()])
def test_state_after_an_exception_inside_a_remedy(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: object, plan: object) -> object:
        with torch.no_grad():
            self.recovery.last_good.restore()  # type: ignore[attr-defined]
        raise raised

    monkeypatch.setattr(proof.StepProof, "_judged", breaks)
    incident, same = failed(tmp_path, 3, entropy, lambda m, d: d.mul_(1e4))
    assert same
    assert not any(one.proved and one.remedy == "log-space" for one in incident.tried)


def test_where_the_process_cannot_fork_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        proof, "obstacle", lambda: "the process has initialised cuda, which a forked child cannot use"
    )
    incident, same = failed(tmp_path, 0, squared, bad_sample)
    assert same and incident.tried == [] and "initialised cuda" in incident.proof_remark
    assert "`stayfinite run` tries in a process of its own" in incident.proof_remark


def by_its_range(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) / (batch[:, 0].amax() - batch[:, 0].amin())).pow(2).mean()


def test_what_is_finite_and_ruins_the_weights_in_one_update_is_no_cure(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    guard = Guard(model, torch.optim.SGD(model.parameters(), 1e-3), run_dir=tmp_path, quiet=True)
    for _ in range(3):
        guard.step(by_its_range, model, torch.rand(8, 4))
    data = 1e4 * torch.rand(8, 4)
    data[:, 0] = 1.0
    incident = guard.step(by_its_range, model, data).incident
    assert incident is not None
    guarded = next(one for one in incident.tried if one.remedy == "guarded-division")
    assert guarded.verdict == "distorts" and "moves the weights" in guarded.reason
