# causes: EPS_UNDERFLOW PREPROC_ZERO_RANGE EMPTY_REDUCTION
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 1).half()
x = torch.randn(4, 8).half()
x[1] = 2.0
centred = x - x.mean(1, keepdim=True)
z = centred / (centred.abs().mean(1, keepdim=True) + 1e-8)  # birth
loss = net(z).float().pow(2).mean()
loss.backward()
