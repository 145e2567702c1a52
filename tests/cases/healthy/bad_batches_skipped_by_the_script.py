import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(12):
    x = torch.randn(8, 4)
    if step % 5 == 3:
        x[0, 0] = float("nan")
    loss = net(x).pow(2).mean()
    if not torch.isfinite(loss):
        continue
    opt.zero_grad()
    loss.backward()
    opt.step()
