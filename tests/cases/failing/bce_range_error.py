# causes: SECONDARY_ERROR LOG_DOMAIN DOMAIN_VIOLATION
# exit: 1
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    x = torch.rand(8, 4) + 0.1
    if step == 3:
        x[0, 0] = -1.0
    features = torch.log(x)  # birth
    p = torch.sigmoid(net(features))
    loss = nn.functional.binary_cross_entropy(p, torch.ones(8, 1))
    opt.zero_grad()
    loss.backward()
    opt.step()
