import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts

torch.manual_seed(0)
for make in (lambda o: CosineAnnealingLR(o, T_max=60), lambda o: CosineAnnealingWarmRestarts(o, T_0=20)):
    net = torch.nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), 0.05)
    sched = make(opt)
    for _step in range(60):
        x = torch.randn(16, 5)
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean() + 0.1
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
