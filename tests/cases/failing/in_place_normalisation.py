# causes: EMPTY_REDUCTION PREPROC_ZERO_RANGE
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 1)
histogram = torch.rand(4, 6)
histogram[2] = 0.0
for row in histogram:
    row /= row.sum()  # birth
loss = net(histogram).pow(2).mean()
loss.backward()
