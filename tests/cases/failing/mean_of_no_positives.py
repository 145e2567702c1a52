# causes: EMPTY_REDUCTION
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(5):
    x = torch.randn(8, 4)
    positive = torch.rand(8) > (0.3 if step < 4 else 1.0)
    errors = net(x).squeeze(1).pow(2)
    loss = errors[positive].mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
