"""Scales that are not positive, errors that are only messengers, memory that nobody wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained

DIST_PARAM = {
    "gaussian likelihood with a collapsed scale": """
        h = torch.tensor([-200.0, 1.0], requires_grad=True); s = torch.exp(h); e = torch.zeros(2)
        loss = (torch.log(s) + 0.5 * (e / s) ** 2).mean()  #!
        loss.backward()
    """,
    "normal with a scale of zero": """
        s = torch.zeros(3, requires_grad=True)
        loss = -torch.distributions.Normal(torch.zeros(3), s).log_prob(torch.ones(3)).mean()  #!
    """,
    "normal unchecked": """
        s = F.relu(torch.tensor([-1.0, 2.0], requires_grad=True))
        d = torch.distributions.Normal(torch.zeros(2), s, validate_args=False)
        loss = -d.log_prob(torch.ones(2)).mean()  #!
        loss.backward()
    """,
    "precision from a softplus that underflows": """
        h = torch.tensor([-150.0, 1.0], requires_grad=True)
        loss = (torch.ones(2) / F.softplus(h)).sum()  #!
        loss.backward()
    """,
    "gaussian_nll_loss with a negative variance": """
        v = torch.tensor([-1.0, 2.0], requires_grad=True)
        loss = F.gaussian_nll_loss(torch.zeros(2), torch.ones(2), v)  #!
    """,
    "gamma function of a concentration of zero": """
        a = F.relu(torch.tensor([-1.0, 2.0], requires_grad=True))
        loss = torch.lgamma(a).sum()  #!
        loss.backward()
    """,
}

SECONDARY_ERROR = {
    "bce after a quotient": """
        x = torch.zeros(4, requires_grad=True)
        p = torch.sigmoid(x / x.sum())  #!
        loss = F.binary_cross_entropy(p, torch.ones(4))
    """,
    "normal after an overflow": """
        x = torch.tensor([200.0, 1.0], requires_grad=True)
        s = torch.exp(x)  #!
        s = s - s
        torch.distributions.Normal(torch.zeros(2), s)
    """,
    "multinomial after a softmax of nothing": """
        s = torch.full((1, 4), -math.inf)
        p = torch.softmax(s, -1)  #!
        torch.multinomial(p, 1)
    """,
}

UNINITIALIZED_MEMORY = {
    "a parameter that was never filled": """
        torch.use_deterministic_algorithms(True)
        w = torch.empty(3, 3)  #!
        torch.use_deterministic_algorithms(False)
        loss = (torch.randn(2, 3) @ w).sum()
    """,
    "an accumulator": """
        torch.use_deterministic_algorithms(True)
        acc = torch.empty(4)  #!
        torch.use_deterministic_algorithms(False)
        for i in range(3): acc = acc + torch.ones(4) * i
        loss = acc.mean()
    """,
    "to_empty without an init": """
        torch.use_deterministic_algorithms(True)
        with torch.device("meta"): net = nn.Linear(4, 2)
        net = net.to_empty(device="cpu")  #!
        torch.use_deterministic_algorithms(False)
        loss = net(torch.randn(2, 4)).sum(); loss.backward()
    """,
}


@pytest.mark.parametrize("source", DIST_PARAM.values(), ids=DIST_PARAM.keys())
def test_scales_that_are_not_positive(source: str, tmp_path: Path) -> None:
    result = explained(source, tmp_path)
    assert result.causes[:1] == ["DIST_PARAM"], str(result)
    assert result.findings[0].line in result.marked, str(result)


@pytest.mark.parametrize("source", SECONDARY_ERROR.values(), ids=SECONDARY_ERROR.keys())
def test_an_error_is_followed_to_its_birth(source: str, tmp_path: Path) -> None:
    result = explained(source, tmp_path)
    assert "SECONDARY_ERROR" in result.causes[:3], str(result)
    assert result.causes[0] != "SECONDARY_ERROR", str(result)
    assert result.findings[0].line in result.marked, str(result)


@pytest.mark.parametrize("source", UNINITIALIZED_MEMORY.values(), ids=UNINITIALIZED_MEMORY.keys())
def test_memory_nobody_wrote(source: str, tmp_path: Path) -> None:
    result = explained(source, tmp_path)
    assert result.causes[:1] == ["UNINITIALIZED_MEMORY"], str(result)
    assert result.findings[0].line in result.marked, str(result)
