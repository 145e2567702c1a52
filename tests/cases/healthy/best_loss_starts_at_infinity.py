import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
best = torch.tensor(float("inf"))
for _ in range(6):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    if loss < best:
        best = loss.detach()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"best {best.item():.3f}")
