# causes: MASK_VALUE INF_TIMES_ZERO
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 6)
keep = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
logits = net(torch.randn(4, 8))
bias = (1 - keep) * float("-inf")  # birth
loss = -torch.log_softmax(logits + bias, -1)[:, 0].mean()  # birth
loss.backward()
