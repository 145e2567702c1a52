import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    y = torch.randn(8, 2)
    y[torch.rand(8, 2) < 0.3] = float("nan")
    known = ~torch.isnan(y)
    loss = (net(torch.randn(8, 4))[known] - y[known]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
