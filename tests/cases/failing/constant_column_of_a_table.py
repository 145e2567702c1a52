# causes: PREPROC_ZERO_RANGE
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
table = np.random.default_rng(0).normal(3.0, 2.0, (120, 5))
table[:, 2] = 1.0
with np.errstate(invalid="ignore"):
    low, high = table.min(0), table.max(0)
    scaled = (table - low) / (high - low)
x = torch.from_numpy(scaled.astype("float32"))  # birth
net = nn.Linear(5, 1)
opt = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(5):
    rows = torch.randint(0, 120, (16,))
    loss = net(x[rows]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
