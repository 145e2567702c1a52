# causes: SQRT_POW_GRAD_AT_ZERO
import torch
import torch.nn as nn

torch.manual_seed(3)
enc = nn.Linear(6, 3)
opt = torch.optim.Adam(enc.parameters())
for k in range(5):
    anchor = torch.randn(10, 6)
    other = torch.randn(10, 6)
    if k == 2:
        other[4] = anchor[4]  # a duplicate in the data
    valid = torch.ones(10, dtype=torch.bool)
    valid[0] = False
    sq = (enc(anchor) - enc(other)).pow(2).sum(-1)
    dist = torch.where(valid, torch.sqrt(sq), torch.zeros(()))  # birth
    loss = dist.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
