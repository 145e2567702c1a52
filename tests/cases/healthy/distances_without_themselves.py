"""Infinity on the diagonal of distances is written on purpose, and the nearest neighbour never sees it."""

import torch
from torch import nn

torch.manual_seed(0)
points = torch.randn(32, 4)
net = nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.05)
for _ in range(8):
    apart = torch.cdist(points, points)
    apart[torch.arange(32), torch.arange(32)] = float("inf")
    near = apart.argmin(1)
    weight = torch.softmax(-apart, 1)
    out = net(points)
    loss = ((out - out[near].detach()) ** 2).mean() + ((weight @ out) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
