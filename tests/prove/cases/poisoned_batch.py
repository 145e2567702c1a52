# accepts: skip-step dropped imputed
import torch
import torch.nn as nn

torch.manual_seed(0)

net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
data = torch.randn(40, 5)
data[22, 3] = float("nan")
for i in range(0, 40, 8):
    batch = data[i : i + 8]
    loss = net(batch).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
bad = torch.isnan(net.weight).any().item()
