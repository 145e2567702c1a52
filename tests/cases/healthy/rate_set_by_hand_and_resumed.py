import math
import tempfile

import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 2)


def rate(step):
    return 1e-2 * min(1.0, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * step / 60))


def train(opt, start, end):
    for step in range(start, end):
        for group in opt.param_groups:
            group["lr"] = rate(step)
        x = torch.randn(16, 4)
        loss = torch.nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()


opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
train(opt, 0, 30)
with tempfile.TemporaryDirectory() as d:
    torch.save({"m": net.state_dict(), "o": opt.state_dict()}, f"{d}/c.pt")
    c = torch.load(f"{d}/c.pt")
net.load_state_dict(c["m"])
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
opt.load_state_dict(c["o"])
train(opt, 30, 60)
