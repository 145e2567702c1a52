# accepts: margin
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

net = nn.Linear(4, 3, bias=False)
a = torch.randn(6, 4)
b = a.clone()
b[1:] = torch.randn(5, 4)
u, v = F.normalize(net(a), dim=1), F.normalize(net(b), dim=1)
cos = (u * v).sum(1).clamp(-1, 1)
cos = torch.where(cos > 0.9999, torch.ones_like(cos), cos) + 0 * cos
angle = torch.acos(u[:, 0] / u[:, 0].abs().max())
(angle.sum() + cos.sum()).backward()
bad = not torch.isfinite(net.weight.grad).all()
