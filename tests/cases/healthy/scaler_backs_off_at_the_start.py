import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), 1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0 * 64)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(torch.randn(16, 8))
    loss = (out.float() - 3).pow(2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
