import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
opt = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(20):
    mu, raw = net(torch.randn(16, 4)).chunk(2, 1)
    policy = torch.distributions.Normal(mu, nn.functional.softplus(raw) + 1e-3)
    action = policy.rsample()
    loss = -policy.log_prob(action.detach()).mean() - policy.entropy().mean() + action.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
