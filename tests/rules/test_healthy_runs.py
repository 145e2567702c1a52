"""Healthy runs: no rule may report an error on any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.watched import incidents_of
from stayfinite.findings import Severity

HEALTHY = {
    "plain loop": """
        net = nn.Linear(4, 1)
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        x = torch.randn(32, 4)
        y = x.sum(1, keepdim=True)
        for _ in range(60):
            loss = F.mse_loss(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
    """,
    "warm-up and cosine": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        x = torch.randn(32, 4)
        y = x.sum(1, keepdim=True)
        S = torch.optim.lr_scheduler
        sch = S.SequentialLR(opt, [S.LinearLR(opt, 0.1, 1.0, 10), S.CosineAnnealingLR(opt, 50)], [10])
        for _ in range(60):
            loss = F.mse_loss(net(x), y); opt.zero_grad(); loss.backward(); opt.step(); sch.step()
    """,
    "long warm-up": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        x = torch.randn(32, 4)
        y = x.sum(1, keepdim=True)
        sch = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, s / 500))
        for _ in range(100):
            loss = F.mse_loss(net(x), y); opt.zero_grad(); loss.backward(); opt.step(); sch.step()
    """,
    "amp with back-off": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-3)
        sc = torch.amp.GradScaler("cpu", init_scale=2.0**24)
        for _ in range(40):
            with torch.autocast("cpu", dtype=torch.float16): out = net(torch.randn(8, 4))
            loss = out.float().pow(2).mean()
            opt.zero_grad()
            sc.scale(loss).backward()
            sc.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0); sc.step(opt); sc.update()
    """,
    "resume with everything": """
        a = nn.Linear(2, 1)
        o = torch.optim.Adam(a.parameters(), 1e-2)
        s = torch.optim.lr_scheduler.CosineAnnealingLR(o, 100)
        for _ in range(20):
            loss = a(torch.randn(3, 2)).pow(2).mean()
            o.zero_grad()
            loss.backward()
            o.step()
            s.step()
        ck = (a.state_dict(), o.state_dict(), s.state_dict())
        b = nn.Linear(2, 1)
        o2 = torch.optim.Adam(b.parameters(), 1e-2)
        s2 = torch.optim.lr_scheduler.CosineAnnealingLR(o2, 100)
        b.load_state_dict(ck[0]); o2.load_state_dict(ck[1]); s2.load_state_dict(ck[2])
        for _ in range(20):
            loss = b(torch.randn(3, 2)).pow(2).mean()
            o2.zero_grad()
            loss.backward()
            o2.step()
            s2.step()
    """,
    "attention with causal mask buffer": """
        class Att(nn.Module):
            def __init__(s):
                super().__init__()
                s.register_buffer("mask", torch.full((6, 6), float("-inf")).triu(1))
                s.q = nn.Linear(8, 8)
            def forward(s, x):
                q = s.q(x); return torch.softmax(q @ q.transpose(1, 2) + s.mask, -1) @ x
        net = Att(); opt = torch.optim.AdamW(net.parameters(), 1e-3)
        for _ in range(10):
            loss = net(torch.randn(2, 6, 8)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    """,
    "bf16 that trains": """
        net = nn.Linear(8, 1).bfloat16()
        opt = torch.optim.SGD(net.parameters(), 0.1)
        x = torch.randn(16, 8).bfloat16()
        y = torch.ones(16, 1).bfloat16()
        for _ in range(70):
            loss = (net(x) - y).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
    """,
    "gan": """
        g = nn.Linear(2, 4)
        d = nn.Sequential(nn.Linear(4, 1))
        og = torch.optim.Adam(g.parameters(), 1e-3)
        od = torch.optim.Adam(d.parameters(), 1e-3)
        for _ in range(20):
            f = g(torch.randn(8, 2)); r = torch.randn(8, 4)
            ld = F.softplus(-d(r)).mean() + F.softplus(d(f.detach())).mean()
            od.zero_grad()
            ld.backward()
            od.step()
            lg = F.softplus(-d(f)).mean(); og.zero_grad(); lg.backward(); og.step()
    """,
    "ema teacher": """
        import copy
        net = nn.Linear(4, 1)
        ema = copy.deepcopy(net)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        for _ in range(20):
            x = torch.randn(8, 4)
            loss = (net(x) - ema(x).detach() - 1).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                for a, b in zip(ema.parameters(), net.parameters()): a.lerp_(b, 0.05)
    """,
    "guarded step that skips a bad batch": """
        net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 1e-2)
        for i in range(12):
            x = torch.randn(8, 4) * (float("inf") if i == 5 else 1.0); loss = net(x).pow(2).mean()
            if not torch.isfinite(loss): continue
            opt.zero_grad(); loss.backward(); opt.step()
    """,
    "best loss from infinity": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        best = torch.tensor(float("inf"))
        for i in range(12):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if loss < best: best = loss.detach()
    """,
    "raw pixels that train": """
        x = torch.randint(0, 256, (64, 12)).float()
        y = torch.rand(64, 1)
        net = nn.Linear(12, 1)
        opt = torch.optim.Adam(net.parameters(), 1e-4)
        for _ in range(40):
            loss = F.mse_loss(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
    """,
    "frozen backbone": """
        a = nn.Linear(4, 4)
        a.requires_grad_(False)
        b = nn.Linear(4, 1)
        opt = torch.optim.SGD([*a.parameters(), *b.parameters()], 1e-2)
        for _ in range(20):
            loss = b(a(torch.randn(8, 4))).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    """,
    "reduce on plateau and warm restarts": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        s = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 10)
        for _ in range(45):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            s.step()
    """,
    "two runs in one script": """
        def train(lr):
            net = nn.Linear(4, 1)
            opt = torch.optim.SGD(net.parameters(), lr)
            sc = torch.amp.GradScaler("cpu", init_scale=1024.)
            for _ in range(15):
                with torch.autocast("cpu", dtype=torch.float16): out = net(torch.randn(8, 4))
                loss = out.float().pow(2).mean()
                opt.zero_grad()
                sc.scale(loss).backward()
                sc.step(opt)
                sc.update()
        train(1e-2); train(1e-3)
    """,
    "soft target network": """
        net = nn.Linear(4, 1)
        tgt = nn.Linear(4, 1)
        tgt.load_state_dict(net.state_dict())
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        for _ in range(12):
            x = torch.randn(8, 4); loss = (net(x) - tgt(x).detach() - 1).pow(2).mean()
            with torch.no_grad():
                for a, b in zip(tgt.parameters(), net.parameters()): a.mul_(0.9).add_(b, alpha=0.1)
            opt.zero_grad(); loss.backward(); opt.step()
    """,
    "two copies trained apart": """
        import copy
        a = nn.Linear(4, 1)
        b = copy.deepcopy(a)
        oa = torch.optim.SGD(a.parameters(), 1e-2)
        ob = torch.optim.Adam(b.parameters(), 1e-2)
        x = torch.randn(16, 4)
        y = x.sum(1, keepdim=True)
        for _ in range(12):
            for n, o in ((a, oa), (b, ob)):
                loss = F.mse_loss(n(x), y); o.zero_grad(); loss.backward(); o.step()
    """,
    "replicas that stay equal": """
        import copy
        nets = [nn.Linear(3, 1)]
        nets.append(copy.deepcopy(nets[0]))
        opts = [torch.optim.SGD(n.parameters(), 0.1) for n in nets]
        for i in range(6):
            for n, o in zip(nets, opts):
                o.zero_grad(); n(torch.randn(4, 3)).pow(2).mean().backward()
            for ps in zip(*[n.parameters() for n in nets]):
                g = sum(p.grad for p in ps) / 2
                for p in ps: p.grad = g.clone()
            for o in opts: o.step()
    """,
    "integer targets in half": """
        y = torch.randint(0, 3000, (200,)).half()
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-7)
        for _ in range(5):
            loss = (net(torch.randn(200, 4)).squeeze(1) - y.float() / 3000).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    """,
    "spike that is skipped": """
        net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 1e-2); recent = []
        for i in range(40):
            x = torch.randn(16, 4) * (300.0 if i == 25 else 1.0)
            y = x.sum(1, keepdim=True) * (1 if i != 25 else -5)
            loss = F.mse_loss(net(x), y); opt.zero_grad(); loss.backward()
            if i > 5 and loss.item() > 20 * max(recent[-5:]): continue
            recent.append(loss.item()); opt.step()
    """,
    "noisy loss": """
        net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 1e-4)
        for i in range(60):
            x = torch.randn(2, 4) * torch.rand(()) * 5
            loss = net(x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    """,
    "overfit then a new task": """
        net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 1e-1)
        for i in range(80):
            x = torch.randn(16, 4)
            y = x.sum(1, keepdim=True) * (1.0 if i < 60 else 0.9)
            loss = F.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    """,
    "caught shape error": """
        net = nn.Linear(4, 1)
        try: net(torch.randn(2, 3))
        except RuntimeError: pass
        loss = net(torch.randn(2, 4)).sum(); loss.backward()
    """,
    "probing an index": """
        x = torch.arange(4)
        try: x[10]
        except IndexError: pass
        net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 1e-2)
        for _ in range(3):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    """,
    "unscaled then stepped by hand": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        sc = torch.amp.GradScaler("cpu", init_scale=64.)
        for _ in range(8):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            sc.scale(loss).backward()
            sc.unscale_(opt)
            sc.step(opt)
            sc.update()
    """,
}


@pytest.mark.parametrize("source", HEALTHY.values(), ids=HEALTHY.keys())
def test_no_error_on_a_healthy_run(source: str, tmp_path: Path) -> None:
    found = [finding for incident in incidents_of(source, tmp_path) for finding in incident.findings]
    errors = [(f.code, f.message) for f in found if f.severity is Severity.ERROR]
    assert not errors
