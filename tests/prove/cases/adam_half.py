# accepts: float32-optimizer larger-eps
import torch
import torch.nn as nn

torch.manual_seed(0)

net = nn.Linear(6, 6).half()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.randn(4, 6).half() * 1e-3
out = net(x).float()
out.pow(2).mean().backward()
optimizer.step()
bad = not torch.isfinite(net.weight).all()
