# causes: RESUME_STATE_MISSING
import torch
from torch import nn

torch.manual_seed(0)


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
kept = {"field": field.state_dict(), "optimizer": optimizer.state_dict()}
field, optimizer = new_run()
field.load_state_dict(kept["field"])  # birth
fit(field, optimizer, 15)
