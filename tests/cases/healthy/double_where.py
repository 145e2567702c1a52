import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 4)
x = net(torch.randn(8, 4))
positive = x > 0
root = torch.where(positive, torch.sqrt(torch.where(positive, x, torch.ones_like(x))), torch.zeros_like(x))
root.sum().backward()
