# accepts: eps-inside double-where norm
import torch
import torch.nn as nn

torch.manual_seed(0)

points = nn.Parameter(torch.randn(5, 3))
with torch.no_grad():
    points[2] = 0
opt = torch.optim.SGD([points], lr=0.1)
radius = (points**2).sum(-1) ** 0.5
loss = (radius - 1).abs().mean()
opt.zero_grad()
loss.backward()
opt.step()
bad = not torch.isfinite(points).all()
