# causes: SCALER_MISUSE
# exit: 1
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.AdamW(net.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=4)
for _ in range(12):
    x = torch.randn(32, 6)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)  # birth
    loss = (out.float() - x[:, :1]).square().mean()  # birth
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    opt.step()  # birth
    scaler.update()
