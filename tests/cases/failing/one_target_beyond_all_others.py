# causes: BAD_BATCH_SPIKE DATA_SCALE LABEL_INVALID
"""One target is 1e30. The gradient of a smooth L1 loss is bounded: the weights are well, but the losses are absurd."""

import torch
from torch import nn

torch.manual_seed(0)
inputs, targets = torch.randn(96, 6), torch.randn(96, 1)
targets[37] = 1e30
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for epoch in range(3):
    total, order = 0.0, torch.randperm(96)
    for start in range(0, 96, 16):
        chosen = order[start : start + 16]
        loss = nn.functional.smooth_l1_loss(net(inputs[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # birth
        total += loss.item()
    print(epoch, total)
