# causes: BAD_BATCH_SPIKE DATA_SCALE
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
for step in range(150):
    x = torch.randn(32, 4)
    target = x[:, :1] * (2000.0 if step == 120 else 1.0)
    loss = (net(x) - target).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # birth
