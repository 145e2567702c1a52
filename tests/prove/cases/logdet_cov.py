# accepts: log-space eps-inside diagonal-jitter
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 16))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


def decorrelation(z):
    z = z - z.mean(0)
    cov = z.T @ z / (len(z) - 1)
    return -torch.log(torch.linalg.det(cov))


bad = False
for step in range(10):
    x = torch.randn(
        8 if step == 4 else 64, 12
    )  # the last batch of an epoch is small: the covariance has no full rank
    z = net(x)
    loss = z.pow(2).mean() + 0.01 * decorrelation(z)
    opt.zero_grad()
    loss.backward()
    opt.step()
    bad = bad or not torch.isfinite(loss).item()
