# causes: EMPTY_REDUCTION
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 1)
opt = torch.optim.AdamW(net.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(20):
    x, chosen = torch.randn(16, 8), torch.rand(16) < (0.5 if step != 12 else 0.0)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        error = (net(x).squeeze(-1).float() - x[:, 0]).square()
        loss = (error * chosen).sum() / chosen.sum()  # birth
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
