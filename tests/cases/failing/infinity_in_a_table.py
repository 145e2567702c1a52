# causes: DATA_NONFINITE
"""One cell of a table is Inf. A tanh makes the loss finite; the gradient multiplies the cell by a slope of 0."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
table = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
np.save("table.npy", table)
stored = np.load("table.npy")
stored[41, 2] = np.inf  # a ratio of two sensors, one of which stood still
values = torch.from_numpy(stored)  # birth
targets = values[:, :1] * 2
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    order = torch.randperm(len(values))
    for start in range(0, len(values), 8):
        chosen = order[start : start + 8]
        loss = ((net(values[chosen]) - targets[chosen]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
