# accepts: guarded-division
import torch
import torch.nn as nn

torch.manual_seed(0)

net = nn.Linear(6, 6)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(5):
    tokens = torch.randn(4, 7, 6)
    keep = torch.ones(4, 7)
    if step == 3:
        keep[2] = 0
    pooled = (net(tokens) * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True)
    loss = pooled.square().mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
bad = bool(torch.isnan(net.weight).any())
