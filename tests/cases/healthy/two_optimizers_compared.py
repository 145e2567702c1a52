import torch
from torch import nn

torch.manual_seed(0)
one, two = nn.Linear(4, 1), nn.Linear(4, 1)
two.load_state_dict(one.state_dict())
runs = [(one, torch.optim.SGD(one.parameters(), 0.1)), (two, torch.optim.Adam(two.parameters(), 0.01))]
x = torch.randn(32, 4)
for _ in range(10):
    for net, opt in runs:
        loss = (net(x) - 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
