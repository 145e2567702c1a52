# accepts: log-space
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(22)
mean, concentration = nn.Linear(6, 1), nn.Linear(6, 1)
optimizer = torch.optim.Adam([*mean.parameters(), *concentration.parameters()], lr=1e-2)
bad = False
for step in range(15):
    x = torch.randn(32, 6)
    if step == 9:
        x[3] = 900 * concentration.weight[0].detach()
    mu, kappa = mean(x).squeeze(-1), F.softplus(concentration(x)).squeeze(-1)
    log_norm = torch.log(2 * math.pi * torch.special.i0(kappa))
    loss = (log_norm - kappa * torch.cos(torch.rand(32) - mu)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bad = bad or not math.isfinite(loss.item())
