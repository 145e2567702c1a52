# accepts: two-pass-variance
import torch
import torch.nn as nn

torch.manual_seed(0)


def whitened(x):
    mean = x.mean(0, keepdim=True)
    spread = torch.sqrt(x.pow(2).mean(dim=0, keepdim=True) - mean**2)
    return (x - mean) / spread


net = nn.Linear(5, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(4):
    table = torch.randn(64, 5)
    if step == 3:
        table = table * 0.01 + 1000.0
    loss = net(whitened(table)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
bad = not all(bool(torch.isfinite(p).all()) for p in net.parameters())
