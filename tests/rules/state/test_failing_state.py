"""Runs whose state fails: optimizers, scalers, averages, resumed rates, rounded updates, replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.watched import incidents_of

LOSS_SCALE_COLLAPSE = {
    "forward overflow at every scale": """
        net = nn.Linear(4, 4)
        opt = torch.optim.SGD(net.parameters(), 1e-3)
        sc = torch.amp.GradScaler("cpu", init_scale=1024.)
        for _ in range(30):
            with torch.autocast("cpu", dtype=torch.float16):
                h = net(torch.full((2, 4), 3e4)); out = h * h
            loss = out.float().mean()
            opt.zero_grad()
            sc.scale(loss).backward()
            sc.step(opt)
            sc.update()
    """,
    "scale runs to zero": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-3)
        sc = torch.amp.GradScaler("cpu", init_scale=2.0**-120)
        for i in range(60):
            bad = i < 40
            loss = (net(torch.randn(8, 4)) * (float("inf") if bad else 1.0)).mean()
            opt.zero_grad()
            sc.scale(loss).backward()
            sc.step(opt)
            sc.update()
    """,
}

OPTIMIZER_ZERO_DIV = {
    "trust ratio": """
        class Lars(torch.optim.Optimizer):
            def __init__(s, p, lr): super().__init__(p, {"lr": lr})
            @torch.no_grad()
            def step(s):
                for g in s.param_groups:
                    for p in g["params"]: p.sub_(p.grad * (p.norm() / p.grad.norm()) * g["lr"])
        net = nn.Linear(4, 1); opt = Lars(net.parameters(), 0.1)
        loss = (net(torch.zeros(2, 4)) * 0 + net.bias).sum(); loss.backward(); opt.step()
    """,
    "adam without eps": """
        net = nn.Embedding(5, 2); opt = torch.optim.Adam(net.parameters(), 1e-2, eps=0.0)
        loss = net(torch.tensor([1, 2])).sum(); loss.backward(); opt.step()
    """,
    "rmsprop without eps": """
        net = nn.Embedding(5, 2); opt = torch.optim.RMSprop(net.parameters(), 1e-2, eps=0.0)
        loss = net(torch.tensor([1, 2])).sum(); loss.backward(); opt.step()
    """,
    "adagrad zero": """
        net = nn.Embedding(5, 2); opt = torch.optim.Adagrad(net.parameters(), 1e-2, eps=0.0)
        loss = net(torch.tensor([1, 2])).sum(); loss.backward(); opt.step()
    """,
}

STATE_POISONED = {
    "a moment of a checkpoint": """
        import io
        net = nn.Linear(4, 2)
        opt = torch.optim.Adam(net.parameters(), 1e-3)
        for i in range(6):
            if i == 3:
                saved = opt.state_dict(); saved["state"][0]["exp_avg_sq"][0, 1] = float("nan")
                file = io.BytesIO(); torch.save(saved, file); file.seek(0)
                opt = torch.optim.Adam(net.parameters(), 1e-3); opt.load_state_dict(torch.load(file))
            loss = net(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
    """,
    "batch norm after a skipped step": """
        net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        for i in range(10):
            x = torch.randn(8, 4)
            if i == 4: x[0] = float("inf")
            loss = net(x).pow(2).mean()
            if not torch.isfinite(loss): continue
            opt.zero_grad(); loss.backward(); opt.step()
    """,
    "moments after weights were restored": """
        import copy
        net = nn.Linear(4, 1)
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        good = copy.deepcopy(net.state_dict())
        for i in range(8):
            x = torch.randn(8, 4) * (1e30 if i == 4 else 1.0)
            loss = net(x).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
            if not all(torch.isfinite(p).all() for p in net.parameters()): net.load_state_dict(good)
            else: good = copy.deepcopy(net.state_dict())
    """,
    "target network": """
        import copy
        net = nn.Linear(4, 1)
        tgt = copy.deepcopy(net)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        good = copy.deepcopy(net.state_dict())
        for i in range(12):
            x = torch.randn(8, 4)
            loss = net(x).pow(2).mean() / (0.0 if i == 5 else 1.0)
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                for a, b in zip(tgt.parameters(), net.parameters()): a.lerp_(b, 0.1)
            if not torch.isfinite(net.weight).all(): net.load_state_dict(good)
            else: good = copy.deepcopy(net.state_dict())
    """,
}

RESUME_LR = {
    "optimizer state brings an old rate": """
        a = nn.Linear(2, 1)
        o = torch.optim.AdamW(a.parameters(), 1e-2)
        a(torch.randn(3, 2)).sum().backward()
        o.step()
        ck = o.state_dict()
        b = nn.Linear(2, 1); o2 = torch.optim.AdamW(b.parameters(), 1e-5); o2.load_state_dict(ck)
        for _ in range(3):
            loss = b(torch.randn(3, 2)).pow(2).mean(); o2.zero_grad(); loss.backward(); o2.step()
    """,
    "scheduler state brings an old peak": """
        a = nn.Linear(2, 1)
        o = torch.optim.SGD(a.parameters(), 1e-1)
        s = torch.optim.lr_scheduler.StepLR(o, 10)
        ck = s.state_dict()
        b = nn.Linear(2, 1)
        o2 = torch.optim.SGD(b.parameters(), 1e-4)
        s2 = torch.optim.lr_scheduler.StepLR(o2, 10)
        s2.load_state_dict(ck)
        for _ in range(30):
            loss = b(torch.randn(3, 2)).pow(2).mean()
            o2.zero_grad()
            loss.backward()
            o2.step()
            s2.step()
    """,
    "cosine past its end": """
        p = [nn.Parameter(torch.ones(1))]
        o = torch.optim.SGD([{"params": p, "initial_lr": 1e-2}], 1e-2)
        half = lambda k: 0.5 * (1 + math.cos(math.pi * k / 100))
        s = torch.optim.lr_scheduler.LambdaLR(o, half, last_epoch=110)
        for _ in range(60): o.zero_grad(); (p[0] ** 2).sum().backward(); o.step(); s.step()
    """,
}

RESUME_STATE_MISSING = {
    "scaler not loaded": """
        net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 1e-4)
        def train(sc, n):
            for _ in range(n):
                with torch.autocast("cpu", dtype=torch.float16): out = net(torch.randn(8, 4))
                loss = (out.float() * 50).pow(2).mean() * 30
                opt.zero_grad()
                sc.scale(loss).backward()
                sc.step(opt)
                sc.update()
        train(torch.amp.GradScaler("cpu", init_scale=2.0**14), 20)
        sc = torch.amp.GradScaler("cpu", init_scale=2.0**20); train(sc, 12)
    """,
    "moments left out": """
        a = nn.Linear(2, 1); o = torch.optim.Adam(a.parameters(), 1e-3)
        for _ in range(5):
            loss = a(torch.randn(3, 2)).pow(2).mean(); o.zero_grad(); loss.backward(); o.step()
        ck = {"state": {}, "param_groups": o.state_dict()["param_groups"]}
        b = nn.Linear(2, 1)
        b.load_state_dict(a.state_dict())
        o2 = torch.optim.Adam(b.parameters(), 1e-3)
        o2.load_state_dict(ck)
        for _ in range(3):
            loss = b(torch.randn(3, 2)).pow(2).mean(); o2.zero_grad(); loss.backward(); o2.step()
    """,
    "scaler made again after loading the optimizer": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-4)
        opt.load_state_dict(torch.optim.SGD(net.parameters(), 1e-4).state_dict())
        sc = torch.amp.GradScaler("cpu", init_scale=2.0**30)
        for _ in range(14):
            with torch.autocast("cpu", dtype=torch.float16): out = net(torch.randn(8, 4))
            loss = out.float().pow(2).mean() * 100
            opt.zero_grad()
            sc.scale(loss).backward()
            sc.step(opt)
            sc.update()
    """,
    "schedule made again": """
        a = nn.Linear(2, 1)
        o = torch.optim.Adam(a.parameters(), 1e-2)
        f = lambda s: max(0.01, 1 - s / 50)
        s = torch.optim.lr_scheduler.LambdaLR(o, f)
        for _ in range(40):
            loss = a(torch.randn(3, 2)).pow(2).mean()
            o.zero_grad()
            loss.backward()
            o.step()
            s.step()
        b = nn.Linear(2, 1)
        b.load_state_dict(a.state_dict())
        o2 = torch.optim.Adam(b.parameters(), 1e-2)
        o2.load_state_dict(o.state_dict())
        s2 = torch.optim.lr_scheduler.LambdaLR(o2, f)
        for _ in range(20):
            loss = b(torch.randn(3, 2)).pow(2).mean()
            o2.zero_grad()
            loss.backward()
            o2.step()
            s2.step()
    """,
}

SCALER_MISUSE = {
    "clip before unscale": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        sc = torch.amp.GradScaler("cpu", init_scale=4096.)
        for _ in range(10):
            loss = net(torch.randn(8, 4)).pow(2).mean(); opt.zero_grad(); sc.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5); sc.step(opt); sc.update()
    """,
    "half parameters": """
        net = nn.Linear(4, 1).half()
        opt = torch.optim.SGD(net.parameters(), 0.1)
        sc = torch.amp.GradScaler("cpu", init_scale=16.)
        loss = net(torch.randn(8, 4).half()).float().pow(2).mean()
        sc.scale(loss).backward()
        sc.step(opt)
        sc.update()
    """,
    "unscale twice": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        sc = torch.amp.GradScaler("cpu", init_scale=16.)
        loss = net(torch.randn(8, 4)).pow(2).mean()
        sc.scale(loss).backward()
        sc.unscale_(opt)
        sc.unscale_(opt)
    """,
    "step without the scaler": """
        net = nn.Linear(4, 1)
        opt = torch.optim.Adam(net.parameters(), 1e-3)
        sc = torch.amp.GradScaler("cpu", init_scale=1024.)
        for _ in range(8):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            sc.scale(loss).backward()
            opt.step()
    """,
    "loss never scaled": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-3)
        sc = torch.amp.GradScaler("cpu", init_scale=1024.)
        try:
            loss = net(torch.randn(8, 4)).pow(2).mean(); loss.backward(); sc.step(opt); sc.update()
        except AssertionError as error: print(error)
    """,
}

CLIP_NONFINITE = {
    "norm of large gradients overflows": """
        w = nn.Parameter(torch.ones(4))
        v = nn.Parameter(torch.ones(4))
        opt = torch.optim.SGD([w, v], 1e-3)
        for _ in range(5):
            loss = (w * 2e38).sum() * 0.5 + v.sum(); opt.zero_grad(); loss.backward()
            torch.nn.utils.clip_grad_norm_([w, v], 1.0); opt.step()
    """,
    "one infinite gradient": """
        w = nn.Parameter(torch.zeros(3))
        v = nn.Parameter(torch.ones(3))
        opt = torch.optim.SGD([w, v], 1e-3)
        loss = w.sqrt().sum() + v.pow(2).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([w, v], 1.0)
        opt.step()
    """,
}

BF16_PRECISION = {
    "frozen weights": """
        net = nn.Linear(8, 1).bfloat16()
        net.weight.data.fill_(2.0)
        opt = torch.optim.SGD(net.parameters(), 1e-5)
        x = torch.randn(16, 8).bfloat16()
        for _ in range(70):
            loss = net(x).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
    """,
    "adamw fine-tuning": """
        net = nn.Linear(8, 8).bfloat16()
        net.weight.data.fill_(1.0)
        net.bias.data.fill_(1.0)
        opt = torch.optim.AdamW(net.parameters(), 1e-5, weight_decay=0.0)
        x = torch.randn(16, 8).bfloat16()
        for _ in range(70):
            loss = net(x).float().pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
    """,
}

AVERAGE = """
        import copy
        net = nn.Linear(24, 24)
        with torch.no_grad(): net.weight.mul_(torch.linspace(0.02, 4.0, 24))
        slow = copy.deepcopy(net).to(torch.bfloat16)
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        x = torch.randn(64, 24); y = torch.randn(64, 24)
        for _ in range(150):
            loss = F.mse_loss(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
            with torch.no_grad():
                for a, b in zip(slow.parameters(), net.parameters()): a.lerp_(b.to(a.dtype), WEIGHT)
"""
BF16_PRECISION["an average whose small values move, and whose large ones do not"] = AVERAGE.replace(
    "WEIGHT", "0.002"
)

DIST_DESYNC = {
    "one replica skipped": """
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
            for r, o in enumerate(opts):
                if not (r == 1 and i == 2): o.step()
    """,
    "different scales": """
        a = nn.Linear(3, 1); b = nn.Linear(3, 1); b.load_state_dict(a.state_dict())
        for i in range(3):
            for n, s in ((a, 1024.0), (b, 512.0)):
                n.zero_grad(); (n(torch.randn(4, 3)).pow(2).mean() * s).backward()
            g = a.weight.grad + b.weight.grad
            with torch.no_grad():
                a.weight.sub_(0.1 * g / 1024.0)
                b.weight.sub_(0.1 * g / 512.0)
    """,
}

CHECKPOINT_CORRUPT = {
    "loaded weights are nan": """
        net = nn.Linear(3, 1)
        sd = {k: v.clone() for k, v in net.state_dict().items()}
        sd["weight"][0, 1] = float("nan")
        net.load_state_dict(sd)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        loss = net(torch.randn(4, 3)).mean()
        loss.backward()
        opt.step()
    """,
}

DATA_NONFINITE = {  # the scale collapses, too, but that is its consequence
    "a NaN in the data at every step": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), 1e-3)
        sc = torch.amp.GradScaler("cpu", init_scale=1024.)
        for _ in range(20):
            x = torch.randn(8, 4); x[0, 0] = float("nan")
            with torch.autocast("cpu", dtype=torch.float16): out = net(x)
            loss = out.float().pow(2).mean()
            opt.zero_grad()
            sc.scale(loss).backward()
            sc.step(opt)
            sc.update()
    """,
}

TABLES = {
    "DATA_NONFINITE": DATA_NONFINITE,
    "LOSS_SCALE_COLLAPSE": LOSS_SCALE_COLLAPSE,
    "OPTIMIZER_ZERO_DIV": OPTIMIZER_ZERO_DIV,
    "STATE_POISONED": STATE_POISONED,
    "RESUME_LR": RESUME_LR,
    "RESUME_STATE_MISSING": RESUME_STATE_MISSING,
    "SCALER_MISUSE": SCALER_MISUSE,
    "CLIP_NONFINITE": CLIP_NONFINITE,
    "BF16_PRECISION": BF16_PRECISION,
    "DIST_DESYNC": DIST_DESYNC,
    "CHECKPOINT_CORRUPT": CHECKPOINT_CORRUPT,
}
SNIPPETS = [
    pytest.param(cause, source, id=f"{cause}: {name}")
    for cause, table in TABLES.items()
    for name, source in table.items()
]


@pytest.mark.parametrize(("cause", "source"), SNIPPETS)
def test_the_cause_comes_first(cause: str, source: str, tmp_path: Path) -> None:
    incidents = incidents_of(source, tmp_path)
    assert incidents, "the run failed and nothing was reported"
    causes = [finding.cause for incident in incidents for finding in incident.findings]
    if cause == "CLIP_NONFINITE":  # the gradient that made the norm infinite may come first
        assert cause in causes[:2], causes
    else:
        assert causes[:1] == [cause], causes


@pytest.mark.parametrize("weight", ["0.1", "0.02"])
def test_an_average_that_follows_in_bfloat16_is_no_failure(weight: str, tmp_path: Path) -> None:
    found = [
        one
        for incident in incidents_of(AVERAGE.replace("WEIGHT", weight), tmp_path)
        for one in incident.findings
    ]
    assert not found, found
