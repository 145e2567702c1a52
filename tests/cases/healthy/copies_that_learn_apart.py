import copy

import torch
from torch import nn

torch.manual_seed(0)
data = torch.randn(64, 5)
target = data.sum(1, keepdim=True)


def learn(net, opt, rows):
    loss = (net(data[rows]) - target[rows]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


# An ensemble from one start: one kind of optimizer, one rate, the same first batch, then other rows.
start = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
members = [copy.deepcopy(start) for _ in range(3)]
optimizers = [torch.optim.Adam(member.parameters(), 1e-2) for member in members]
for step in range(30):
    for member, opt in zip(members, optimizers, strict=True):
        learn(member, opt, torch.arange(8) if step == 0 else torch.randint(0, 64, (8,)))

# The same data in the same order, at two rates and for two lengths.
first, second = copy.deepcopy(start), copy.deepcopy(start)
fast, slow = torch.optim.SGD(first.parameters(), 3e-2), torch.optim.SGD(second.parameters(), 1e-2)
third, fourth = copy.deepcopy(start), copy.deepcopy(start)
long, short = torch.optim.SGD(third.parameters(), 2e-2), torch.optim.SGD(fourth.parameters(), 2e-2)
for step in range(30):
    rows = torch.randint(0, 64, (8,))
    learn(first, fast, rows)
    learn(second, slow, rows)
    learn(third, long, rows)
    if step < 20:
        learn(fourth, short, rows)

# Replicas that are given one gradient and all take it.
ranks = [copy.deepcopy(start) for _ in range(2)]
optimizers = [torch.optim.AdamW(rank.parameters(), 1e-2) for rank in ranks]
for _ in range(20):
    for rank, opt in zip(ranks, optimizers, strict=True):
        rows = torch.randint(0, 64, (8,))
        opt.zero_grad()
        (rank(data[rows]) - target[rows]).pow(2).mean().backward()
    for copies in zip(*(rank.parameters() for rank in ranks), strict=True):
        mean = sum(p.grad for p in copies) / 2
        for p in copies:
            p.grad = mean.clone()
    for opt in optimizers:
        opt.step()

# Twin critics with a target each, on the same batch.
critics = [nn.Linear(5, 1), nn.Linear(5, 1)]
targets = [copy.deepcopy(critic) for critic in critics]
optimizers = [torch.optim.Adam(critic.parameters(), 1e-2) for critic in critics]
for _ in range(20):
    rows = torch.randint(0, 64, (8,))
    with torch.no_grad():
        goal = torch.minimum(targets[0](data[rows]), targets[1](data[rows])) * 0.9 + target[rows]
    for critic, slow_copy, opt in zip(critics, targets, optimizers, strict=True):
        loss = (critic(data[rows]) - goal).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for old, new in zip(slow_copy.parameters(), critic.parameters(), strict=True):
                old.lerp_(new, 0.1)
