import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
for _step in range(25):
    x, y = torch.randn(32, 16) * 3, torch.randn(32, 4) * 3
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
        loss = (out.float() - y).pow(2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
