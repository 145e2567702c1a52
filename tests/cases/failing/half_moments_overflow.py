# causes: PURE_LOWP_OPTIMIZER FP16_OVERFLOW
# exit: 1
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 2).half()
opt = torch.optim.Adam(net.parameters(), 1e-3, eps=1e-4)
x = torch.randn(64, 6).half()
for _ in range(40):
    loss = (net(x).float() - 40).square().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()  # birth
