# causes: INVTRIG_BOUNDARY
import torch
from torch import nn

torch.manual_seed(0)
a = nn.Parameter(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
b = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
opt = torch.optim.SGD([a], 0.1)
cosine = (a * b).sum(-1)
angle = torch.acos(cosine)  # birth
loss = angle.sum()
loss.backward()
opt.step()
