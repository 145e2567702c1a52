# causes: DATA_NONFINITE
"""The script spoils one of its samples: batch norm makes NaN of the whole batch."""

import torch
from torch import nn

torch.manual_seed(0)
images = torch.rand(48, 1, 6, 6)
images[29, 0, 2, 2] = float("inf")  # birth
labels = torch.randint(0, 3, (48,))
net = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
)
optimizer = torch.optim.SGD(net.parameters(), 0.05)
for epoch in range(3):
    for start in range(0, 48, 8):
        x, y = images[start : start + 8], labels[start : start + 8]
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
