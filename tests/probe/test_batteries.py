"""The batteries: healthy models pass without a finding, broken ones are named with their line, nothing is touched."""

from __future__ import annotations

import copy
import linecache
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.healthy_models import HEALTHY
from stayfinite.findings import Finding, Severity
from stayfinite.probe import Probe, ProbeVerdict, WrongFactory, examine_model
from stayfinite.probe.batteries import all_batteries
from stayfinite.probe.target import as_probe

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


def probed(made: Any, *, budget: float = 0.0, **how: Any) -> ProbeVerdict:
    return examine_model(as_probe(made), budget=budget, **how)


def codes(verdict: ProbeVerdict) -> set[str]:
    return {finding.code for finding in verdict.findings}


def one(verdict: ProbeVerdict, code: str) -> Finding:
    return next(finding for finding in verdict.findings if finding.code == code)


def test_the_five_batteries_are_found() -> None:
    assert [battery.name for battery in all_batteries()] == [
        "forward",
        "loss",
        "gradient",
        "stability",
        "edge",
    ]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_passes_without_a_finding(name: str) -> None:
    verdict = probed(HEALTHY[name](), budget=0.15, stress=name in ("mlp", "vae"))
    assert verdict.findings == []
    assert {verdict.state(part) for part, _ in verdict.ran} == {"pass"}


def _snapshot(model: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("copies", [True, False], ids=["copied", "cannot be copied"])
def test_nothing_of_the_user_is_touched(copies: bool) -> None:
    model, x = (
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)),
        torch.randn(6, 4),
    )
    if not copies:
        model.register_module("extra", _Stubborn())
    model[0].weight.grad = torch.full((4, 4), 7.0)
    model[2].eval()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    before, kept, modes = _snapshot(model), x.clone(), [m.training for m in model.modules()]
    state = copy.deepcopy(optimizer.state_dict())
    drawn, plain = torch.get_rng_state(), random.getstate()

    probed((model, x, lambda model, x: _scribble(model, x), optimizer), budget=0.2, stress=True)

    assert all(torch.equal(a, b) for a, b in zip(before, _snapshot(model), strict=True))
    assert torch.equal(x, kept) and torch.equal(torch.get_rng_state(), drawn) and random.getstate() == plain
    assert model[0].weight.grad is not None and bool((model[0].weight.grad == 7).all())
    assert model[3].weight.grad is None
    assert [m.training for m in model.modules()] == modes
    assert optimizer.state_dict() == state


class _Stubborn(nn.Module):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("it holds a handle")


def _scribble(model: nn.Module, x: Tensor) -> Tensor:
    x.mul_(0.5)  # writes into its batch
    random.random()
    loss: Tensor = model[:4](x).pow(2).mean() if isinstance(model, nn.Sequential) else model(x)
    return loss


def test_a_loss_that_reads_the_model_from_its_surroundings() -> None:
    model = nn.Linear(3, 1)
    before = _snapshot(model)
    verdict = probed((model, torch.randn(4, 3), lambda _m, x: model(x).pow(2).mean()))
    assert verdict.findings == []
    assert all(torch.equal(a, b) for a, b in zip(before, _snapshot(model), strict=True))
    assert model.weight.grad is None


# -- what each battery finds ---------------------------------------------------------------------------------


def test_forward_nan_weight_and_nan_output() -> None:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    verdict = probed((model, torch.randn(4, 3), lambda m, x: m(x).pow(2).mean()))
    assert "PRB001" in codes(verdict)
    assert verdict.state("stability") == "not run"


def test_forward_fails_only_in_evaluation() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            return out if self.training else out / (out - out).sum()

    finding = one(probed((Scaled(3, 2), torch.randn(4, 3), lambda m, x: m(x).pow(2).mean())), "PRB001")
    assert "evaluation mode" in finding.message
    assert "out / (out - out)" in linecache.getline(finding.file or "", finding.line or 0)


def test_the_bad_loss_component_is_named_with_its_line() -> None:
    def loss(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        out = model(x)
        return {"fit": out.pow(2).mean(), "entropy": (out - out.detach()).abs().log().mean()}

    finding = one(probed((nn.Linear(3, 2), torch.randn(4, 3), loss)), "PRB002")
    assert "'entropy'" in finding.message and finding.cause == "LOG_DOMAIN"
    assert ".log()" in linecache.getline(finding.file or "", finding.line or 0)


def test_a_classifier_far_worse_than_chance() -> None:
    model = nn.Linear(8, 10)
    nn.init.normal_(model.weight, std=10)
    finding = one(probed((model, (torch.randn(32, 8), torch.randint(10, (32,))), F.cross_entropy)), "PRB003")
    assert finding.severity is Severity.WARNING and finding.evidence["classes"] == 10


def test_a_finite_loss_with_an_infinite_gradient() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out = model(x)
        return out.pow(2).mean() + (out - out.detach()).abs().sum().sqrt()

    finding = one(probed((nn.Linear(3, 2), torch.randn(4, 3), loss)), "PRB004")
    assert ".sqrt()" in linecache.getline(finding.file or "", finding.line or 0)


class _Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.cut = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x) + self.cut(x).detach()
        return out


def test_parameters_without_a_gradient_are_named() -> None:
    finding = one(probed((_Unused(), torch.randn(4, 4), lambda m, x: m(x).pow(2).mean())), "PRB005")
    assert set(finding.evidence["parameters"]) == {"unused.weight", "unused.bias", "cut.weight", "cut.bias"}


def test_branches_that_start_at_zero_are_no_finding() -> None:
    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.down, self.up = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(2, 6)
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.base(x) + self.up(self.down(x))
            return out

    assert (
        probed(
            (Adapter(), torch.randn(8, 6), lambda m, x: (m(x) - 1).pow(2).mean()), only=["gradient"]
        ).findings
        == []
    )


def test_vanishing_gradients() -> None:
    layers = [layer for _ in range(16) for layer in (nn.Linear(8, 8), nn.Sigmoid())]
    verdict = probed(
        (nn.Sequential(*layers, nn.Linear(8, 1)), torch.randn(8, 8), lambda m, x: m(x).pow(2).mean())
    )
    assert "vanishes" in one(verdict, "PRB006").message


def test_a_clamp_that_cuts_every_gradient() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).clamp(5, 6).pow(2).mean()

    finding = one(probed((nn.Linear(4, 4), torch.rand(8, 4), loss), only=["gradient"]), "PRB007")
    assert "clamp" in linecache.getline(finding.file or "", finding.line or 0)


def test_half_precision_and_headroom() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (1000 * model(x)).pow(2).sum(-1).mean()

    model = nn.Linear(4, 4)
    verdict = probed((model, torch.randn(8, 4), loss), only=["stability"])
    assert {"PRB008", "PRB009"} & codes(verdict)
    found = [f for f in verdict.findings if f.code in ("PRB008", "PRB009")]
    assert all("pow(2)" in linecache.getline(f.file or "", f.line or 0) for f in found)
    assert any("float16" in f.message for f in found)


def test_a_written_mask_is_no_overflow() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        scores = model(x)
        return (
            -torch.log_softmax(scores.masked_fill(torch.eye(4, dtype=torch.bool), -1e9), -1)[:, 0]
            .clamp(max=50)
            .mean()
        )

    assert "PRB009" not in codes(probed((nn.Linear(4, 4), torch.randn(4, 4), loss), only=["stability"]))


def test_growth_per_block() -> None:
    class Residual(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x + 3 * super().forward(x)

    model = nn.Sequential(*(Residual(16, 16) for _ in range(8)))
    finding = one(
        probed((model, torch.randn(8, 16), lambda m, x: m(x).pow(2).mean()), only=["stability"]), "PRB010"
    )
    assert finding.evidence["per_block"] > 1.7


def test_no_headroom_for_larger_inputs() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return torch.exp(20 * model(x).abs()).mean()

    model = nn.Linear(4, 1, bias=False)
    nn.init.constant_(model.weight, 0.2)
    verdict = probed((model, torch.ones(8, 4), loss))
    found = [f for f in verdict.findings if f.code == "PRB011"]
    assert found and all("torch.exp" in linecache.getline(f.file or "", f.line or 0) for f in found)


def test_updates_that_are_rounded_away() -> None:
    model = nn.Linear(8, 8).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    x = torch.randn(4, 8).bfloat16()
    verdict = probed((model, x, lambda m, x: m(x).float().pow(2).mean(), optimizer), only=["stability"])
    assert one(verdict, "PRB012").cause == "BF16_PRECISION"


def test_a_first_update_that_replaces_the_weights() -> None:
    model = nn.Linear(8, 8)
    given = (model, torch.randn(4, 8), lambda m, x: m(x).pow(2).mean(), lambda p: torch.optim.Adam(p, 5.0))
    assert one(probed(given, only=["stability"]), "PRB013").severity is Severity.WARNING


def test_an_eps_that_is_zero_in_half_is_named_and_not_the_learning_rate() -> None:
    model = nn.Linear(8, 8).half()
    x = torch.randn(4, 8).half() * 1e-3  # squares of the gradients are below what float16 holds

    def given(eps: float) -> tuple[object, ...]:
        loss = lambda m, x: m(x).float().pow(2).mean() * 1e-2  # noqa: E731
        return model, x, loss, lambda p: torch.optim.AdamW(p, 1e-3, eps=eps)

    finding = one(probed(given(1e-8), only=["stability"]), "PRB013")
    assert "eps 1e-08 is exactly 0 in float16" in finding.message and "learning rate" not in finding.fix
    assert finding.cause == "PURE_LOWP_OPTIMIZER"
    assert not [f for f in probed(given(1e-3), only=["stability"]).findings if f.code == "PRB013"]


EDGES: dict[str, tuple[Callable[[nn.Module, Any], Tensor], str]] = {
    "zeros": (lambda m, x: (x / x.norm(dim=-1, keepdim=True) + m(x)).pow(2).mean(), "all-zero inputs"),
    "single": (lambda m, x: ((m(x) - m(x).mean(0)) / m(x).std(0)).pow(4).mean(), "a single sample"),
    "repeated": (lambda m, x: (m(x)[:1] - m(x)[1:]).pow(2).sum(-1).sqrt().mean(), "repeated samples"),
    "confident": (lambda m, x: -torch.log(1 - torch.sigmoid(m(x))).mean(), "confident outputs"),
}


@pytest.mark.parametrize("name", EDGES)
def test_edge_cases(name: str) -> None:
    loss, condition = EDGES[name]
    torch.manual_seed(0)
    verdict = probed((nn.Linear(4, 4), torch.randn(6, 4), loss), only=["edge"])
    told = [c for f in verdict.findings if f.code == "PRB014" for c in f.evidence["conditions"]]
    assert any(told_one.startswith(condition) for told_one in told), told
    assert all(f.line is not None for f in verdict.findings if f.code == "PRB014")


def test_conditions_that_fail_at_one_line_are_one_finding() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model((x - x.mean()) / x.var(unbiased=False)).pow(2).mean()

    verdict = probed((nn.Linear(4, 4), torch.randn(6, 4), loss), only=["edge"])
    found = [f for f in verdict.findings if f.code == "PRB014" and f.line is not None]
    assert len(found) == 1 and len(found[0].evidence["conditions"]) >= 2


def test_what_the_code_refuses_is_no_finding() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    verdict = probed((model, torch.randn(6, 4), lambda m, x: m(x).pow(2).mean()), only=["edge"])
    assert verdict.findings == []
    assert any("refused with ValueError" in note for note in verdict.subject.notes["edge"])


def test_stress_names_what_breaks_first() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    x = torch.randn(16, 4)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (torch.exp(model(x)) - 2).pow(2).mean()

    verdict = probed(
        (model, lambda: x, loss, torch.optim.SGD(model.parameters(), 0.05)), stress=True, only=["loss"]
    )
    finding = one(verdict, "PRB016")
    assert finding.severity is Severity.INFO and "calm" in finding.message
    assert verdict.healthy


def test_dicts_several_inputs_and_models_with_their_own_loss() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, a: Tensor, b: Tensor) -> Any:
            return type("Output", (), {"loss": (self.layer(a) * self.layer(b)).mean()})()

    batch = {"a": torch.randn(3, 4), "b": torch.randn(3, 4)}
    assert examine_model(Probe(Two(), batch), budget=0).findings == []
    assert examine_model(Probe(Two(), tuple(batch.values())), budget=0).findings == []


def test_all_labels_ignored_is_a_warning_where_no_gradient_is_bad() -> None:
    label = torch.tensor([0, 1, -100, 1])
    verdict = probed((nn.Linear(4, 2), (torch.randn(4, 4), label), nn.CrossEntropyLoss()), only=["edge"])
    finding = one(verdict, "PRB014")
    assert finding.severity is Severity.WARNING and "all labels ignored" in finding.message
    assert finding.cause == "EMPTY_REDUCTION"


def test_what_does_not_fit_together_is_said_and_not_probed() -> None:
    with pytest.raises(WrongFactory, match="reduce it to one number"):
        probed((nn.Linear(4, 2), torch.randn(4, 4), lambda m, x: m(x)))
    with pytest.raises(WrongFactory, match="the batch must be \\(inputs, target\\)"):
        probed((nn.Linear(4, 2), torch.randn(4, 4), nn.MSELoss()))
    with pytest.raises(WrongFactory, match="no loss function was given"):
        probed((nn.Linear(4, 2), torch.randn(4, 4)))
    with pytest.raises(WrongFactory, match="its batch cannot be made: KeyError"):
        probed((nn.Linear(4, 2), lambda: {}["x"], nn.MSELoss()))
