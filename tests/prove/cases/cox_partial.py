# accepts: log-space
import torch
from torch import nn

torch.manual_seed(10)
features = torch.randn(240, 6)
features[77, 2], features[78, 2] = -9000.0, 9000.0  # in other units
time = torch.rand(240)
event = (torch.rand(240) < 0.6).float()


def partial_likelihood(risk, time, event):
    order = torch.argsort(time, descending=True)
    risk, event = risk[order], event[order]
    hazard = torch.exp(risk)
    return -((risk - torch.log(torch.cumsum(hazard, dim=0))) * event).sum() / event.sum()


net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
bad = False
for rows in torch.arange(240).split(60):
    loss = partial_likelihood(net(features[rows]).squeeze(-1), time[rows], event[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bad = bad or not torch.isfinite(loss).item()
