import os
import pickle
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())
net = nn.Linear(6, 2)
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)


def train(steps):
    for _ in range(steps):
        loss = net(torch.randn(8, 6)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for epoch in range(3):
    train(4)
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"{epoch}.pt")
os.truncate(folder / "2.pt", 900)


def latest():
    for epoch in (3, 2, 1, 0):
        try:
            return torch.load(folder / f"{epoch}.pt")
        except (FileNotFoundError, RuntimeError, OSError, EOFError):
            print("no use:", epoch)
    raise SystemExit("nothing to resume from")


state = latest()
net.load_state_dict(state["net"])
optimizer.load_state_dict(state["optimizer"])
train(8)


class Settings:
    pass


# A whole file that a weights-only load refuses is not damaged.
torch.save({"settings": Settings()}, folder / "settings.pt")
try:
    torch.load(folder / "settings.pt", weights_only=True)
except pickle.UnpicklingError as refusal:
    print(type(refusal).__name__)
