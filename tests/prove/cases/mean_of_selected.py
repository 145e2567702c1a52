# accepts: guarded-mean
import torch
import torch.nn as nn

torch.manual_seed(0)

net = nn.Linear(4, 1)
scores = net(torch.randn(9, 4)).squeeze(1)
hard = scores[scores > 1e6]
loss = scores.pow(2).mean() + 0.1 * hard.mean()
loss.backward()
bad = torch.isnan(loss).item()
