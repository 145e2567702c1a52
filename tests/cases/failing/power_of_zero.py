# causes: SQRT_POW_GRAD_AT_ZERO
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(5, 5)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    keep = (torch.rand(16, 5) > 0.2).float()
    gain = torch.sigmoid(net(torch.randn(16, 5))) * keep
    loss = (gain**0.3).mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
