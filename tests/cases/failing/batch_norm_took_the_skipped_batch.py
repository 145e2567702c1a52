# causes: STATE_POISONED LOG_DOMAIN
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
energy = torch.rand(48, 6) + 0.1
energy[29, 3] = 0.0
labels = (energy[:, 0] > 0.6).long()
net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _ in range(2):
    for x, y in DataLoader(TensorDataset(energy, labels), batch_size=8):
        loss = F.cross_entropy(net(x.log()), y)  # birth
        if not torch.isfinite(loss):
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
