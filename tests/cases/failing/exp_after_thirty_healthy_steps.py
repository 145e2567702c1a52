# causes: EXP_OVERFLOW LR_DIVERGENCE
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(40):
    x = torch.randn(32, 4)
    if step == 31:
        x[5] = 900.0
    rate = torch.exp(net(x).abs())  # birth
    loss = (rate - 2.0).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
