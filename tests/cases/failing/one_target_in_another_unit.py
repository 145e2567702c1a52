# causes: BAD_BATCH_SPIKE
# exit: 1
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), 1e-2)
truth = torch.randn(8, 1)
for step in range(80):
    x = torch.randn(32, 8)
    y = x @ truth
    if step == 60:
        y[3] = 4e4
    loss = F.mse_loss(net(x), y)  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()  # birth
