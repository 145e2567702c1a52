# causes: LR_DIVERGENCE
# exit: 1
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), 8.0)
x = torch.randn(32, 6)
y = x.sum(1, keepdim=True)
for _ in range(200):
    loss = nn.functional.mse_loss(net(x), y)  # birth
    opt.zero_grad()
    loss.backward()  # birth
    opt.step()  # birth
