# causes: RESUME_STATE_MISSING
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())


def new_run():
    field = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    return field, torch.optim.Adam(field.parameters(), lr=3e-2, betas=(0.9, 0.99))


def fit(field, optimizer, steps):
    for _ in range(steps):
        where = torch.rand(128, 2)
        loss = (field(where) - (where[:, :1] - where[:, 1:])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


field, optimizer = new_run()
fit(field, optimizer, 300)
torch.save({"epoch": 300, "field": field.state_dict()}, folder / "part.tmp")  # birth
(folder / "part.tmp").rename(folder / "part.pt")

field, optimizer = new_run()
field.load_state_dict(torch.load(folder / "part.pt")["field"])
fit(field, optimizer, 15)
