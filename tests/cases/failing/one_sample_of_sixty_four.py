# causes: NORMALIZE_ZERO_VECTOR EMPTY_REDUCTION PREPROC_ZERO_RANGE
# samples: 17
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = torch.randn(256, 6)
data[64 * 2 + 17] = 0.0
net = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)
for (x,) in DataLoader(TensorDataset(data), batch_size=64):
    unit = x / x.norm(dim=1, keepdim=True)  # birth
    loss = net(unit).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
