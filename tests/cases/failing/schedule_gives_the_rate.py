# causes: CONFIG_MISTAKE
import torch
from torch import nn

torch.manual_seed(0)
rate = 1e-3
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), rate)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: rate * min(1.0, (n + 1) / 5))  # birth
for _ in range(60):
    loss = (net(torch.randn(16, 4)) - 1).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    schedule.step()
