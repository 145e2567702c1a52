"""NUM025: a residual that layers enlarge until a square overflows float32; and what only looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained
from rules.watched import incidents_of

GROWN = {
    "a residual before a layer norm": """
        mixing = nn.Linear(8, 8, bias=False); nn.init.eye_(mixing.weight); mixing.weight.data.mul_(9.0)
        x = torch.randn(4, 8)
        for _ in range(22):
            x = mixing(x)
        loss = F.layer_norm(x, (8,)).square().mean()  #!
    """,
    "the same in bfloat16": """
        mixing = nn.Linear(8, 8, bias=False).bfloat16(); nn.init.eye_(mixing.weight); mixing.weight.data.mul_(9.0)
        x = torch.randn(4, 8).bfloat16()
        for _ in range(22):
            x = mixing(x)
        loss = F.layer_norm(x, (8,)).square().mean()  #!
    """,
    "a norm of the streams": """
        scale = nn.Parameter(torch.tensor(30.0))
        x = torch.randn(4, 8)
        for _ in range(14):
            x = x + scale * x
        loss = x.norm()  #!
    """,
}
OTHERS = {
    "data that is out of scale": """
        x = torch.randn(4, 8) * 1e30
        w = nn.Parameter(torch.ones(8))
        loss = (x * w).square().mean()  #!
    """,
    "a value close to zero in a divisor": """
        w = nn.Parameter(torch.full((8,), 1e-30))
        loss = (1 / w).square().sum()  #!
    """,
    "float16 is another story": """
        x = torch.full((4, 8), 300.0).half().requires_grad_()
        loss = (x * x).sum()  #!
    """,
}


@pytest.mark.parametrize("name", GROWN)
def test_growth_inside_the_model_is_named(name: str, tmp_path: Path) -> None:
    found = explained(GROWN[name], tmp_path)
    assert found.findings, str(found)
    first = found.findings[0]
    assert (first.code, first.cause) == ("NUM025", "EXP_OVERFLOW"), str(found)
    assert first.line in found.marked


@pytest.mark.parametrize("name", OTHERS)
def test_other_causes_come_first(name: str, tmp_path: Path) -> None:
    found = explained(OTHERS[name], tmp_path)
    assert not any(finding.code == "NUM025" for finding in found.findings[:1]), str(found)


def test_the_layers_of_a_sequential_are_no_line_that_runs_again(tmp_path: Path) -> None:
    """Each is larger than the one before; the line that calls them runs once."""
    source = """
        net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])
        for layer in net: layer.weight.data.mul_(1e9)
        loss = net(torch.randn(4, 8)).square().mean()  #!
    """
    found = explained(source, tmp_path)
    told = [finding.message for finding in found.findings if finding.code == "NUM025"]
    assert told, str(found)
    assert "again" not in told[0]


def test_the_ops_of_one_update_are_no_line_that_runs_again(tmp_path: Path) -> None:
    """Weight decay, momentum and the update itself are sums at the line of `opt.step()`, which ran once."""
    source = """
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
        opt = torch.optim.SGD(net.parameters(), 1e16, momentum=0.9, weight_decay=1e-4)
        for _ in range(2):
            loss = net(torch.randn(4, 8)).square().mean()
            opt.zero_grad(); loss.backward(); opt.step()
    """
    findings = [finding for incident in incidents_of(source, tmp_path) for finding in incident.findings]
    assert findings[0].code == "RUN010"
    assert not any("again and again" in finding.message for finding in findings), findings


def test_two_products_on_one_line_are_no_line_that_runs_again(tmp_path: Path) -> None:
    """One of them is larger than the other, and neither was made of it."""
    source = """
        w = nn.Parameter(torch.tensor(2e38))
        loss = F.l1_loss(w * torch.ones(8), w * 0.1 * torch.zeros(8) + w * 0.01, reduction="sum")  #!
    """
    found = explained(source, tmp_path)
    told = [finding.message for finding in found.findings if finding.code == "NUM025"]
    assert told, str(found)
    assert "again" not in told[0]
