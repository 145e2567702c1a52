# causes: PREPROC_ZERO_RANGE
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        wave = torch.sin(torch.arange(16) * (index + 1.0))
        if index == 13:
            wave = torch.ones(16)
        return (wave - wave.mean()) / wave.std()  # birth


torch.manual_seed(0)
net = nn.Linear(16, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for x in DataLoader(Signals(), batch_size=4):
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
