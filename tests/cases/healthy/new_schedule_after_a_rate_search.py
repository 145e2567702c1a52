import copy

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, StepLR
from torch.optim.swa_utils import SWALR

torch.manual_seed(0)


def step(net, opt):
    x = torch.randn(16, 5)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9)
kept = copy.deepcopy((net.state_dict(), opt.state_dict()))
search = ExponentialLR(opt, 1.5)
for _ in range(12):
    step(net, opt)
    search.step()
net.load_state_dict(kept[0])
opt.load_state_dict(kept[1])
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-2, total_steps=60)
for _ in range(30):
    step(net, opt)
    schedule.step()

# Three ways to go on at the right rate: last_epoch, a rate that the script sets, a state of the scheduler.
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), 2e-2, momentum=0.9)
steady = LambdaLR(opt, lambda epoch: 0.9**epoch)
for _ in range(12):
    step(net, opt)
    steady.step()
saved = copy.deepcopy((net.state_dict(), opt.state_dict(), steady.state_dict()))

net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), 2e-2, momentum=0.9)
net.load_state_dict(saved[0])
opt.load_state_dict(saved[1])
steady = LambdaLR(opt, lambda epoch: 0.9**epoch, last_epoch=11)
for _ in range(6):
    step(net, opt)
    steady.step()

opt.load_state_dict(saved[1])
for group in opt.param_groups:
    group["lr"] = group["initial_lr"] = 5e-2
drops = StepLR(opt, 5)
for _ in range(6):
    step(net, opt)
    drops.step()

opt = torch.optim.SGD(net.parameters(), 2e-2, momentum=0.9)
opt.load_state_dict(saved[1])
steady = LambdaLR(opt, lambda epoch: 0.9**epoch)
steady.load_state_dict(saved[2])
for _ in range(6):
    step(net, opt)
    steady.step()

# A last phase with averaged weights has a rate of its own.
opt.load_state_dict(saved[1])
average = SWALR(opt, swa_lr=1.5e-2, anneal_epochs=3)
for _ in range(8):
    step(net, opt)
    average.step()
