# causes: LOG_DOMAIN DOMAIN_VIOLATION
# exit: 3
import math
import sys

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(20):
    x = torch.rand(8, 4) + 0.5 - 0.05 * step
    loss = (net(x.log()) - 1).pow(2).mean()  # birth
    if not math.isfinite(loss.item()):
        print("loss is", loss.item())
        sys.exit(3)
    opt.zero_grad()
    loss.backward()
    opt.step()
