# causes: WHERE_UNSAFE_BRANCH LOG_DOMAIN DOMAIN_VIOLATION
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 4)
x = net(torch.randn(8, 4))
safe = torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))  # birth
loss = safe.sum()
loss.backward()
