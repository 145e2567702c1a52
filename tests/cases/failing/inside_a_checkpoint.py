# causes: LOG_DOMAIN
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        h = torch.relu(self.inner(x))
        return h * torch.log(h)  # birth


net = nn.Sequential(nn.Linear(8, 8), Block(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(2):
    h = net[0](torch.randn(4, 8))
    h = checkpoint(net[1], h, use_reentrant=False)
    loss = net[2](h).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
