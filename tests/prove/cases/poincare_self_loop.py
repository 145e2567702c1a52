# accepts: margin
import torch
from torch import nn

torch.manual_seed(11)
points = nn.Parameter((torch.rand(40, 5) - 0.5) * 0.02)
optimizer = torch.optim.SGD([points], lr=0.05)
bad = False
for step in range(15):
    i = torch.randint(0, 40, (16,))
    j = (i + torch.randint(1, 40, (16,))) % 40
    if step == 9:
        j[3] = i[3]
    u, v = points[i], points[j]
    distance = (u - v).pow(2).sum(-1)
    size = (1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1))
    loss = torch.acosh(1 + 2 * distance / size).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bad = bad or not torch.isfinite(points).all().item()
