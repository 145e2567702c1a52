import torch
from torch import nn

torch.manual_seed(0)


def build():
    net = nn.Linear(4, 1)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    return net, opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)


def train(net, opt, schedule, steps):
    for _ in range(steps):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()


first = build()
train(*first, 10)
second = build()
for new, old in zip(second, first, strict=True):
    new.load_state_dict(old.state_dict())
train(*second, 10)
