# causes: EXP_OVERFLOW
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 1e-3)
for step in range(5):
    x = torch.randn(8, 3).abs() * (1 if step < 4 else 3e3)
    with torch.no_grad():
        net.weight.abs_()
    h = net(x)
    loss = torch.log(1 + torch.exp(h)).mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
