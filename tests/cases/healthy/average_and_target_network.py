import copy

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
target = copy.deepcopy(net)
target.load_state_dict(net.state_dict())
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _ in range(10):
    x = torch.randn(16, 4)
    with torch.no_grad():
        goal = target(x)
    loss = (net(x) - goal - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast, 0.05)
