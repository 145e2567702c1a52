# causes: LABEL_INVALID
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), 0.05)
for _ in range(15):
    x = torch.randn(24, 5)
    sign = torch.sign(x[:, :1] + x[:, 1:2])
    loss = F.binary_cross_entropy_with_logits(net(x), sign)  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
