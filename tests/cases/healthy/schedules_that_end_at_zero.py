import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR

torch.manual_seed(0)


def train(net, opt, schedule, steps, batch):
    for _ in range(steps):
        x = batch()
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()


def fresh():
    return torch.randn(16, 4)


net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.05)
train(net, opt, CosineAnnealingLR(opt, 60), 60, fresh)

net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.05)
train(net, opt, LambdaLR(opt, lambda step: max(0.0, 1 - step / 60)), 62, fresh)

# One group is frozen for good by its schedule while the other goes on.
net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
opt = torch.optim.SGD([{"params": net[0].parameters()}, {"params": net[1].parameters()}], 0.01)
train(net, opt, LambdaLR(opt, [lambda step: float(step < 10), lambda step: 1.0]), 60, fresh)

# A fit to fixed points that is done when its rate is gone.
points = fresh()
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.2, momentum=0.8)
train(net, opt, ExponentialLR(opt, 0.97), 800, lambda: points)
