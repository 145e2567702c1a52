# causes: PREPROC_ZERO_RANGE
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Clips(Dataset):
    def __init__(self):
        self.waves = torch.randn(24, 32)
        self.waves[13] = 0

    def __len__(self):
        return 24

    def __getitem__(self, index):
        wave = self.waves[index]
        gain = (wave.numel() / wave.square().sum()).sqrt()  # birth
        return wave * gain  # birth


net = nn.Linear(32, 32)
opt = torch.optim.SGD(net.parameters(), 0.01)
for wave in DataLoader(Clips(), batch_size=4):
    loss = (net(wave) - wave).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
