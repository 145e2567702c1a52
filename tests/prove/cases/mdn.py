# accepts: log-space floor
import math

import torch
import torch.nn as nn

torch.manual_seed(0)


class MDN(nn.Module):
    def __init__(self, k=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 32), nn.Tanh())
        self.pi, self.mu, self.sigma = nn.Linear(32, k), nn.Linear(32, k), nn.Linear(32, k)

    def forward(self, x):
        h = self.body(x)
        return torch.softmax(self.pi(h), -1), self.mu(h), torch.exp(self.sigma(h))


def gaussian(y, mu, sigma):
    return torch.exp(-0.5 * ((y - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def nll(pi, mu, sigma, y):
    likelihood = torch.sum(pi * gaussian(y, mu, sigma), dim=1)
    return -torch.log(likelihood).mean()


model = MDN()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
bad = False
for step in range(40):
    x = torch.rand(64, 1) * 10 - 5
    y = 7 * torch.sin(0.75 * x) + 0.5 * x + 9 * torch.randn(64, 1)
    pi, mu, sigma = model(x)
    loss = nll(pi, mu, sigma, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    bad = bad or not torch.isfinite(loss).item()
