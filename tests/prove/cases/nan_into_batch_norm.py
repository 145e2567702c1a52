# accepts: imputed
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(20)
net = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
bad = False
for step in range(12):
    x = torch.randn(32, 12)
    if step == 7:
        x[4, 3] = float("nan")  # a sensor was silent
    loss = F.cross_entropy(net(x), torch.randint(0, 3, (32,)))
    optimizer.zero_grad()
    if torch.isfinite(loss):
        loss.backward()
        optimizer.step()
    else:
        bad = True
net.eval()
bad = bad or not torch.isfinite(net(torch.randn(4, 12))).all().item()
