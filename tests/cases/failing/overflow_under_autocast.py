# causes: FP16_OVERFLOW DATA_SCALE
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), 1e-4)
x, y = torch.randn(8, 16), torch.randn(8, 1)
for step in range(5):
    scale = 1.0 if step < 4 else 3e4
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x * scale)  # birth
        energy = out * out  # birth
    loss = (energy.float() - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
