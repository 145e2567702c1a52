# causes: EMPTY_REDUCTION
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 5)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(4):
    y = torch.randint(0, 5, (6,))
    if step == 2:
        y[:] = -100
    loss = nn.functional.cross_entropy(net(torch.randn(6, 8)), y)  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
