# causes: LOG_DOMAIN
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(6):
    x = torch.randn(16, 8) * (1.0 if step < 4 else 400.0)
    target = torch.randint(0, 4, (16,))
    p = torch.softmax(net(x), -1)
    loss = -torch.log(p[torch.arange(16), target]).mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
