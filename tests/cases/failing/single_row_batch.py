# causes: TOO_FEW_SAMPLES
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)
rows = torch.randn(9, 4)
for start in range(0, 9, 4):
    z = net(rows[start : start + 4])
    spread = z.var(dim=0)  # birth
    loss = (spread - 1).pow(2).mean() + z.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
