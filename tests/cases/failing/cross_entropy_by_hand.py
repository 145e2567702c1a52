# causes: INF_TIMES_ZERO LOG_DOMAIN
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 3)
target = torch.eye(3)[torch.tensor([0, 1, 2, 0])]
x = torch.randn(4, 4)
x[3] = torch.tensor([4e3, -3e3, 5e3, 2e3])
p = torch.softmax(net(x), -1)
loss = -(target * p.log()).sum(-1).mean()  # birth
loss.backward()
