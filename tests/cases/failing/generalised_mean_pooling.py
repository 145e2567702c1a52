# causes: DOMAIN_VIOLATION
import torch
import torch.nn as nn
import torch.nn.functional as F


class GeM(nn.Module):
    def __init__(self, p=3.0):
        super().__init__()
        self.p = nn.Parameter(torch.ones(1) * p)

    def forward(self, x):
        return F.avg_pool2d(x.pow(self.p), (x.size(-2), x.size(-1))).pow(1.0 / self.p)  # birth


torch.manual_seed(0)
backbone, pool, head = nn.Conv2d(3, 8, 3), GeM(), nn.Linear(8, 5)
params = [*backbone.parameters(), *pool.parameters(), *head.parameters()]
opt = torch.optim.SGD(params, lr=0.01)
for step in range(4):
    f = backbone(torch.randn(6, 3, 9, 9))
    if step == 0:
        f = f.abs() + 0.1
    loss = F.cross_entropy(head(pool(f).flatten(1)), torch.randint(0, 5, (6,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
