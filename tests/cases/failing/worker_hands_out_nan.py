# causes: DATA_NONFINITE
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Readings(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        value = torch.full((4,), float(index))
        if index == 21:
            value[2] = float("nan")
        return value / 32


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for x in DataLoader(Readings(), batch_size=8, num_workers=2):  # birth
        loss = net(x).pow(2).mean()  # birth
        opt.zero_grad()
        loss.backward()
        opt.step()
