# accepts: guarded-division eps
import torch
import torch.nn as nn

torch.manual_seed(0)

table = torch.randn(50, 4)
table[:, 2] = 7.0
features = (table - table.mean(0)) / table.std(0)
net = nn.Linear(4, 1)
loss = net(features).pow(2).mean()
loss.backward()
bad = torch.isnan(loss).item()
