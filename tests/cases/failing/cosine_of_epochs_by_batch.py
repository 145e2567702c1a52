# causes: CONFIG_MISTAKE
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

torch.manual_seed(0)
EPOCHS, BATCHES = 6, 40
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
sched = CosineAnnealingLR(opt, T_max=EPOCHS)  # birth
for _epoch in range(EPOCHS):
    for _b in range(BATCHES):
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()  # birth
