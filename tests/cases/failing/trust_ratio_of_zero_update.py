# causes: OPTIMIZER_ZERO_DIV EMPTY_REDUCTION NORMALIZE_ZERO_VECTOR
import torch
from torch import nn


class Lars(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                ratio = p.norm() / p.grad.norm()  # birth
                p.add_(p.grad * ratio, alpha=-group["lr"])


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
with torch.no_grad():
    net[2].weight.zero_()
opt = Lars(net.parameters(), 0.1)
for _ in range(2):
    loss = (net(torch.randn(8, 4)) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
