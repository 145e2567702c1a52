"""Births in float16 and bfloat16: the format, the eps, or the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained

FP16_OVERFLOW = {
    "a sum over many values": """
        x = torch.full((4096,), 100.0).half().requires_grad_()
        loss = x.sum()  #!
        loss.backward()
    """,
    "a product under autocast": """
        net = nn.Linear(8, 8); x = torch.full((2, 8), 3e4)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x) * 50  #!
        loss = out.float().sum(); loss.backward()
    """,
    "attention scores without a scale": """
        q = (torch.randn(4, 64) * 200).half(); k = (torch.randn(4, 64) * 200).half()
        s = q @ k.t()  #!
        out = torch.softmax(s, -1)
    """,
    "the square of an activation": """
        h = torch.tensor([300.0, 1.0]).half().requires_grad_()
        loss = (h * h).mean()  #!
        loss.backward()
    """,
    "a cast of a large gradient": """
        g = torch.randn(64) * 1e5
        out = g.to(torch.float16) / 64  #!
    """,
    "a norm of moderate gradients": """
        g = torch.full((10000,), 900.0).half()
        out = g.norm()  #!
    """,
}

EPS_UNDERFLOW = {
    "eps added before a division": """
        x = torch.zeros(2, 4).half().requires_grad_()
        n = x.abs().sum(-1, keepdim=True) + 1e-8
        loss = (x / n).sum()  #!
        loss.backward()
    """,
    "eps of normalize in half": """
        x = torch.zeros(2, 4).half().requires_grad_()
        loss = F.normalize(x, dim=-1).sum()  #!
        loss.backward()
    """,
    "eps inside a log": """
        p = torch.zeros(4).half().requires_grad_()
        loss = -torch.log(p + 1e-8).mean()  #!
        loss.backward()
    """,
    "clamp to an eps that is zero": """
        v = torch.zeros(4).half().requires_grad_()
        loss = (1.0 / v.clamp_min(1e-9)).sum()  #!
        loss.backward()
    """,
    "rsqrt of a variance with eps": """
        x = torch.ones(2, 8).half().requires_grad_()
        y = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-12)  #!
        loss = y.sum(); loss.backward()
    """,
}

PURE_LOWP_OPTIMIZER = {
    "adam on half parameters": """
        net = nn.Linear(4, 2).half(); opt = torch.optim.Adam(net.parameters(), 1e-3)
        loss = (net(torch.randn(8, 4).half() * 1e-2).float() * 1e-2).pow(2).mean(); loss.backward()
        opt.step()  #!
    """,
    "adamw for each tensor": """
        net = nn.Linear(4, 2).half(); opt = torch.optim.AdamW(net.parameters(), 1e-3, foreach=False)
        loss = (net(torch.randn(8, 4).half() * 1e-2).float() * 1e-2).pow(2).mean(); loss.backward()
        opt.step()  #!
    """,
    "rmsprop on half parameters": """
        net = nn.Linear(4, 2).half(); opt = torch.optim.RMSprop(net.parameters(), 1e-3)
        loss = (net(torch.randn(8, 4).half() * 1e-2).float() * 1e-2).pow(2).mean(); loss.backward()
        opt.step()  #!
    """,
}

TABLES = {
    "FP16_OVERFLOW": FP16_OVERFLOW,
    "EPS_UNDERFLOW": EPS_UNDERFLOW,
    "PURE_LOWP_OPTIMIZER": PURE_LOWP_OPTIMIZER,
}
SNIPPETS = [
    pytest.param(cause, source, id=f"{cause}: {name}")
    for cause, table in TABLES.items()
    for name, source in table.items()
]


@pytest.mark.parametrize(("cause", "source"), SNIPPETS)
def test_the_cause_comes_first_at_the_line_of_birth(cause: str, source: str, tmp_path: Path) -> None:
    result = explained(source, tmp_path)
    assert result.causes[:1] == [cause], str(result)
    assert result.findings[0].line in result.marked, str(result)
