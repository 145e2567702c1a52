# accepts: eps-inside double-where norm
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

encoder = nn.Linear(12, 6)
left = torch.randn(8, 12)
right = left.clone()
right[4:] += 0.5
gap = (encoder(left) - encoder(right)).pow(2).sum(1).sqrt()
loss = F.relu(1.0 - gap).mean()
loss.backward()
bad = not torch.isfinite(encoder.weight.grad).all()
