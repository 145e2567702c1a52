"""RUN023: weights that a script makes by hand out of gradients, at a rate that ruins them; and modest ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained
from rules.watched import incidents_of

_INNER = """
    layers = [nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(3, 8))]
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    def net(ws): return F.linear(F.relu(F.linear(x, ws[0])), ws[1])
    fast = list(layers)
    for _ in range(8):
        grads = torch.autograd.grad(F.cross_entropy(net(fast), y), fast)
        fast = [UPDATE for w, g in zip(fast, grads)]  #!
    loss = F.cross_entropy(net(fast), y) SPOILT
"""


@pytest.mark.parametrize(
    "update",
    ["w - 1e4 * g", "torch.sub(w, g, alpha=1e4)", "w + g.neg() * 1e4"],
    ids=["product", "alpha", "plus"],
)
def test_an_inner_rate_that_is_far_too_high(update: str, tmp_path: Path) -> None:
    found = explained(_INNER.replace("UPDATE", update).replace("SPOILT", ""), tmp_path)
    first = found.findings[0]
    assert (first.code, first.cause) == ("RUN023", "LR_DIVERGENCE"), str(found)
    assert first.line in found.marked and "learning rate 10000 of the script's own update" in first.message


def test_a_modest_one_is_not_to_blame(tmp_path: Path) -> None:
    spoilt = "+ (layers[0] * 1e30 * 1e30).sum()"
    found = explained(_INNER.replace("UPDATE", "w - 0.1 * g").replace("SPOILT", spoilt), tmp_path)
    assert found.findings and "RUN023" not in [one.code for one in found.findings], str(found)


def test_what_an_optimizer_steps_is_not_the_update_of_the_script(tmp_path: Path) -> None:
    source = """
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1)); opt = torch.optim.SGD(net.parameters(), 0.02)
    scaler = torch.amp.GradScaler("cpu")
    x = torch.randn(128, 20); y = x.sum(1, keepdim=True)
    for step in range(12):
        opt.zero_grad()
        scaler.scale(F.mse_loss(net(x), y)).backward()
        opt.step()
    """
    codes = {finding.code for incident in incidents_of(source, tmp_path) for finding in incident.findings}
    assert "STA034" in codes
    assert "RUN023" not in codes
