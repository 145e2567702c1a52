import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

torch.manual_seed(0)
net = torch.nn.Linear(8, 2)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
sched = SequentialLR(
    opt, [LinearLR(opt, 0.1, total_iters=2), CosineAnnealingLR(opt, T_max=8)], milestones=[2]
)
for _epoch in range(10):
    for _ in range(10):
        x = torch.randn(16, 8)
        loss = torch.nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
    sched.step()
