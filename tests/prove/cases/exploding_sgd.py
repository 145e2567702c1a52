# accepts: measured-rate lower-rate clip growth
import torch
import torch.nn as nn

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.9)
x = torch.randn(64, 8) * 4
y = x.sum(1, keepdim=True)
for step in range(60):
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
bad = not torch.isfinite(net[0].weight).all()
