# causes: LINALG_DEGENERATE
import torch
from torch import nn

torch.manual_seed(0)
w = nn.Parameter(torch.eye(4))
u, s, v = torch.linalg.svd(w)  # birth
loss = (u * torch.randn(4, 4)).sum()
loss.backward()
