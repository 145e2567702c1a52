# causes: DATA_SCALE
"""One cell in the wrong unit: the square of it overflows the running variance, and nothing else ever is."""

import torch
from torch import nn

torch.manual_seed(0)
table = torch.randn(96, 6)
table[37, 2] = 1e20
targets = torch.randn(96, 1)
net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for epoch in range(3):
    order = torch.randperm(96)
    for start in range(0, 96, 16):
        chosen = order[start : start + 16]
        out = net(table[chosen])  # birth
        loss = nn.functional.smooth_l1_loss(out, targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
