# causes: PURE_LOWP_OPTIMIZER EPS_UNDERFLOW
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 8).half()
opt = torch.optim.AdamW(net.parameters(), 1e-3, foreach=True)
for _ in range(2):
    loss = net(torch.randn(4, 8).half() * 0.01).float().pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # birth
