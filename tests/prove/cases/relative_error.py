# accepts: guarded-division
import torch
import torch.nn as nn

torch.manual_seed(0)

net = nn.Linear(3, 1)
x = torch.rand(16, 3)
target = torch.rand(16, 1)
target[5] = 0.0
loss = ((net(x) - target).abs() / target.abs()).mean()
loss.backward()
bad = not torch.isfinite(loss)
