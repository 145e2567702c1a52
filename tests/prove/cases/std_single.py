# accepts: std-of-one
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


def normalise(returns):
    return (returns - returns.mean()) / (returns.std() + 1e-6)


policy = nn.Linear(3, 2)
opt = torch.optim.Adam(policy.parameters(), 1e-2)
for episode, length in enumerate([7, 4, 1, 6]):
    obs = torch.randn(length, 3)
    logp = F.log_softmax(policy(obs), dim=1)[:, 0]
    loss = -(logp * normalise(torch.randn(length))).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
bad = torch.isnan(policy.weight).any().item()
