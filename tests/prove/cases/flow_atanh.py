# accepts: margin log-space
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)


class TanhFlow(nn.Module):
    """actions in (-1, 1) back to the plane, and their density"""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))

    def log_prob(self, state, action):
        mean, log_std = self.net(state).chunk(2, dim=-1)
        u = torch.atanh(action)
        base = Normal(mean, log_std.clamp(-5, 2).exp()).log_prob(u)
        return (base - torch.log(1 - action.pow(2))).sum(-1)


flow = TanhFlow()
opt = torch.optim.Adam(flow.parameters(), lr=3e-4)
bad = False
for step in range(30):
    state = torch.randn(64, 6)
    action = torch.tanh(
        torch.randn(64, 2) * (1.0 if step < 9 else 6.0)
    )  # the replay buffer fills with saturated ones
    loss = -flow.log_prob(state, action).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    bad = bad or not torch.isfinite(loss).item()
