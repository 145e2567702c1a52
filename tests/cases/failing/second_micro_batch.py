# causes: EMPTY_REDUCTION
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(6):
    opt.zero_grad()
    for micro in range(2):
        x = torch.randn(6, 4)
        valid = torch.ones(6) if (step, micro) != (4, 1) else torch.zeros(6)
        per_token = net(x).pow(2).sum(1)
        loss = (per_token * valid).sum() / valid.sum()  # birth
        (loss / 2).backward()
    opt.step()
