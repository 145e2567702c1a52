# causes: EMPTY_REDUCTION
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 1)
opt = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(25):
    x, time = torch.randn(8, 6), torch.rand(8)
    event = (torch.rand(8) < (0.4 if step != 17 else 0.0)).float()
    order = time.argsort(descending=True)
    risk, event = net(x[order]).squeeze(1), event[order]
    likelihood = risk - risk.logcumsumexp(0)
    loss = -(likelihood * event).sum() / event.sum()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
