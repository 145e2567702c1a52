# accepts: float32 bfloat16
import torch
import torch.nn as nn

torch.manual_seed(0)

net = nn.Linear(64, 64)
with torch.no_grad():
    net.weight.mul_(700)
x = torch.randn(4, 64)
with torch.autocast("cpu", dtype=torch.float16):
    h = net(x)
    energy = (h * h).sum(-1)
loss = energy.float().mean()
loss.backward()
bad = not torch.isfinite(loss)
