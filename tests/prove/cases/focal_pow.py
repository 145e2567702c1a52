# accepts: eps-inside double-where log-space floor
import torch
import torch.nn as nn

torch.manual_seed(0)

net = nn.Linear(10, 1)
x = torch.randn(20, 10) * 100
p = torch.sigmoid(net(x))
y = torch.randint(0, 2, (20, 1)).float()
pt = torch.where(y == 1, p, 1 - p)
loss = -((1 - pt) ** 0.7 * torch.log(pt.clamp_min(1e-7))).mean()
loss.backward()
bad = not torch.isfinite(net.weight.grad).all()
