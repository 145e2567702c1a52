# causes: BF16_PRECISION PURE_LOWP_OPTIMIZER
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 1).bfloat16()
with torch.no_grad():
    net.weight.fill_(2.0)
    net.bias.fill_(2.0)
opt = torch.optim.SGD(net.parameters(), 1e-5)
for _ in range(40):
    loss = (net(torch.randn(16, 8).bfloat16()) - 1).float().pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # birth
