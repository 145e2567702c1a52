# accepts: log-space floor
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

policy = nn.Linear(6, 4)
opt = torch.optim.Adam(policy.parameters(), lr=0.01)
for step in range(12):
    obs = torch.randn(16, 6) * (1.0 if step < 9 else 400.0)
    probs = F.softmax(policy(obs), dim=-1)
    entropy = -(probs * probs.log()).sum(-1).mean()
    loss = -entropy
    opt.zero_grad()
    loss.backward()
    opt.step()
bad = not torch.isfinite(policy.weight).all()
