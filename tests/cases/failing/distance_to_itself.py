# causes: SQRT_POW_GRAD_AT_ZERO
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 2)
opt = torch.optim.Adam(net.parameters(), 1e-3)
z = net(torch.randn(6, 3))
squared = (z[:, None] - z[None]).pow(2).sum(-1)
distance = torch.sqrt(squared)  # birth
loss = distance.mean()
loss.backward()
opt.step()
