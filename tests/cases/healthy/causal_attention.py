import torch
from torch import nn

torch.manual_seed(0)
net = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
mask = torch.full((6, 6), float("-inf")).triu(1)
for _ in range(4):
    loss = net(torch.randn(2, 6, 16), src_mask=mask).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
