# causes: DATA_SCALE EXP_OVERFLOW
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
g = torch.Generator().manual_seed(0)
prices = torch.rand(64, 4, generator=g) * 5e6 + 1e6
table = DataLoader(TensorDataset(prices, torch.rand(64, 1, generator=g)), batch_size=16)
net = torch.nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _epoch in range(2):
    for x, y in table:
        err = (net(x) - y).abs() ** 6  # birth
        loss = err.mean()  # birth
        opt.zero_grad()
        loss.backward()
        opt.step()
