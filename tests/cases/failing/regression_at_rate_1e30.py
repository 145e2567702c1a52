# causes: LR_DIVERGENCE
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(128, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e30)
for _epoch in range(2):
    for xb, yb in loader:
        opt.zero_grad()
        loss = ((net(xb) - yb) ** 2).mean()  # birth
        loss.backward()  # birth
        opt.step()  # birth
