# causes: SCALER_MISUSE
import torch
from torch import nn

torch.manual_seed(0)
trunk, head, extra = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1)
parameters = [*trunk.parameters(), *head.parameters(), *extra.parameters()]
optimizer = torch.optim.SGD(parameters, 0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _ in range(30):
    x = torch.randn(16, 6)
    y = x[:, :1]
    with torch.autocast("cpu", dtype=torch.float16):
        hidden = trunk(x).relu()
        loss = (head(hidden).float() - y).square().mean()
        second = (extra(hidden.detach()).float() + y).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    second.backward()  # birth
    scaler.step(optimizer)
    scaler.update()
