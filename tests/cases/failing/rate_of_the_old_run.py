# causes: RESUME_LR
import torch
from torch import nn

torch.manual_seed(0)
old = torch.optim.AdamW(nn.Linear(3, 1).parameters(), 3e-2)
saved = old.state_dict()
net = nn.Linear(3, 1)
opt = torch.optim.AdamW(net.parameters(), 1e-5)
opt.load_state_dict(saved)  # birth
for _ in range(4):
    loss = net(torch.randn(8, 3)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
