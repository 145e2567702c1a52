"""Births in logarithms, exponentials, roots and inverse functions: traced snippets, explained by the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained

LOG_DOMAIN = {
    "log of a softmax that underflows": """
        logits = torch.tensor([[0.0, 200.0]], requires_grad=True)
        loss = -torch.log(torch.softmax(logits, -1))[0, 0]  #!
        loss.backward()
    """,
    "log of one minus a saturated sigmoid": """
        logit = torch.tensor([30.0], requires_grad=True)
        loss = -torch.log(1 - torch.sigmoid(logit)).mean()  #!
        loss.backward()
    """,
    "log of a relu output": """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        loss = torch.log(net(torch.randn(16, 4))).mean()  #!
        loss.backward()
    """,
    "log2 of a probability of zero": """
        p = torch.softmax(torch.tensor([0.0, -120.0, 3.0], requires_grad=True), 0)
        loss = -(p * torch.log2(p)).sum()  #!
        loss.backward()
    """,
    "gumbel noise from a uniform zero": """
        u = torch.rand(8); u[3] = 0.0
        logits = torch.zeros(8, requires_grad=True)
        loss = (logits - torch.log(-torch.log(u))).logsumexp(0) * torch.log(u).mean()  #!
        loss.backward()
    """,
    "log of a negative prediction": """
        net = nn.Linear(4, 1); y = torch.rand(16, 1) + 0.5
        loss = (torch.log(net(torch.randn(16, 4))) - torch.log(y)).pow(2).mean()  #!
        loss.backward()
    """,
    "log1p below minus one": """
        x = torch.tensor([-1.5, 2.0], requires_grad=True)
        loss = torch.log1p(x).sum()  #!
        loss.backward()
    """,
    "log-space product of probabilities that underflows": """
        p = torch.full((64, 40), 0.01, requires_grad=True)
        loss = -torch.log(p.prod(1)).mean()  #!
        loss.backward()
    """,
    "cosine turned into log without guard": """
        a = torch.randn(4, 3, requires_grad=True); b = -a.detach()
        loss = -torch.log(F.cosine_similarity(a, b) + 1).sum()  #!
        loss.backward()
    """,
    "xlogy with a positive weight on a zero": """
        q = torch.tensor([0.0, 1.0], requires_grad=True); p = torch.tensor([0.5, 0.5])
        loss = -torch.xlogy(p, q).sum()  #!
        loss.backward()
    """,
}

EXP_OVERFLOW = {
    "exp of a log-variance": """
        net = nn.Linear(4, 2)
        with torch.no_grad(): net.bias[1] = 95.0
        mu, lv = net(torch.randn(8, 4)).chunk(2, 1)
        loss = (mu.pow(2) + lv.exp() - lv - 1).mean()  #!
        loss.backward()
    """,
    "softplus by hand in a gradient": """
        x = torch.tensor([1.0, 100.0], requires_grad=True)
        y = torch.log(1 + torch.exp(x)); y = torch.sigmoid(y)  #!
        y.sum().backward()
    """,
    "softmax by hand": """
        s = torch.tensor([[10.0, 95.0]], requires_grad=True)
        e = s.exp()  #!
        loss = (e / e.sum(-1, keepdim=True))[0, 0]; loss.backward()
    """,
    "cosh loss": """
        x = torch.tensor([90.0, 1.0], requires_grad=True)
        loss = torch.log(torch.cosh(x)).mean()  #!
        loss.backward()
    """,
    "importance ratio": """
        new = torch.tensor([0.0, 120.0], requires_grad=True); old = torch.zeros(2)
        ratio = torch.exp(new - old)  #!
        loss = (ratio * torch.tensor([1.0, -1.0])).sum(); loss.backward()
    """,
    "all exponentials underflow in the divisor": """
        d = torch.full((2, 5), 200.0, requires_grad=True)
        w = torch.exp(-d)
        w = w / w.sum(-1, keepdim=True)  #!
        loss = w.pow(2).sum(); loss.backward()
    """,
    "clamp after exp": """
        x = torch.tensor([100.0, 1.0], requires_grad=True)
        y = torch.exp(x).clamp(max=1e6)  #!
        loss = y.sum(); loss.backward()
    """,
    "a power with a large exponent": """
        x = torch.tensor([50.0, 2.0], requires_grad=True)
        loss = x.pow(40).mean()  #!
        loss.backward()
    """,
}

DOMAIN_VIOLATION = {
    "variance as a difference of means": """
        x = torch.full((8, 1), 1000.1) + torch.tensor([[0.0, 1e-4]]); x.requires_grad_()
        var = (x * x).mean(0) - x.mean(0) ** 2 - 1e-2
        loss = torch.sqrt(var).sum()  #!
        loss.backward()
    """,
    "distance from a gram matrix": """
        x = torch.randn(6, 3); g = x @ x.t()
        d2 = g.diag()[:, None] + g.diag()[None, :] - 2.5 * g
        w = torch.ones((), requires_grad=True)
        loss = (w * torch.sqrt(d2)).mean()  #!
        loss.backward()
    """,
    "fractional power of a negative": """
        x = torch.tensor([-0.5, 1.0], requires_grad=True)
        loss = x.pow(1 / 2.2).mean()  #!
        loss.backward()
    """,
    "gamma curve on normalised pixels": """
        x = torch.randn(4, 4); w = torch.ones(4, requires_grad=True)
        loss = ((w * x) ** 0.45).mean()  #!
        loss.backward()
    """,
    "rsqrt of a negative": """
        v = torch.tensor([-1.0, 2.0], requires_grad=True)
        loss = torch.rsqrt(v).sum()  #!
        loss.backward()
    """,
}

INVTRIG_BOUNDARY = {
    "acos of a cosine of equal vectors, in the gradient": """
        a = torch.tensor([[1.0, 0.0]], requires_grad=True)
        loss = torch.acos((a * torch.tensor([[1.0, 0.0]])).sum(-1)).mean()  #!
        loss.backward()
    """,
    "acos beyond one by rounding": """
        a = torch.tensor([1.0000001, 0.5], requires_grad=True)
        loss = torch.acos(a).mean()  #!
        loss.backward()
    """,
    "clamp to plus minus one is not enough": """
        c = torch.tensor([1.0, 0.2], requires_grad=True)
        loss = torch.acos(c.clamp(-1, 1)).mean() + torch.asin(c.clamp(-1, 1)).mean()  #!
        loss.backward()
    """,
    "atan2 near the origin": """
        v = torch.full((3, 2), 1e-13, requires_grad=True)
        loss = torch.atan2(v[:, 1], v[:, 0]).sum()  #!
        loss.backward()
    """,
    "atanh of a saturated tanh": """
        x = torch.tensor([20.0, 0.1], requires_grad=True)
        loss = torch.atanh(torch.tanh(x)).mean()  #!
        loss.backward()
    """,
    "inverse of the error function": """
        u = torch.tensor([1.0, 0.0]); w = torch.ones(2, requires_grad=True)
        loss = (w * torch.erfinv(u)).sum()  #!
        loss.backward()
    """,
}

SNIPPETS = [
    pytest.param(cause, source, id=f"{cause}: {name}")
    for cause, table in (
        ("LOG_DOMAIN", LOG_DOMAIN),
        ("EXP_OVERFLOW", EXP_OVERFLOW),
        ("DOMAIN_VIOLATION", DOMAIN_VIOLATION),
        ("INVTRIG_BOUNDARY", INVTRIG_BOUNDARY),
    )
    for name, source in table.items()
]


@pytest.mark.parametrize(("cause", "source"), SNIPPETS)
def test_the_cause_comes_first_at_the_line_of_birth(cause: str, source: str, tmp_path: Path) -> None:
    result = explained(source, tmp_path)
    assert result.causes[:1] == [cause], str(result)
    assert result.findings[0].line in result.marked, str(result)
