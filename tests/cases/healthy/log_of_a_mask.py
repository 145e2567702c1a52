import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 5)
keep = torch.tensor([True, True, True, False, False])
logits = net(torch.randn(4, 8)) + keep.float().log()
loss = -torch.log_softmax(logits, -1)[:, 0].mean()
loss.backward()
