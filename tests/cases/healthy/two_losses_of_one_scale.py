# A scaled loss through one optimizer, in micro-batches, and an unscaled one through another: each as it should be.
import torch
from torch import nn

torch.manual_seed(0)
trunk, extra = nn.Linear(6, 8), nn.Linear(8, 1)
head = nn.Linear(8, 1)
first = torch.optim.SGD([*trunk.parameters(), *head.parameters()], 0.05)
second = torch.optim.SGD(extra.parameters(), 0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _ in range(30):
    first.zero_grad()
    second.zero_grad()
    for _ in range(2):
        x = torch.randn(16, 6)
        y = x[:, :1]
        with torch.autocast("cpu", dtype=torch.float16):
            hidden = trunk(x).relu()
            loss = (head(hidden).float() - y).square().mean()
        scaler.scale(loss / 2).backward()
        scaler.scale(0.01 * trunk.weight.square().sum()).backward()
    beside = (extra(hidden.detach().float()) + y).square().mean()
    beside.backward()
    second.step()
    scaler.step(first)
    scaler.update()
