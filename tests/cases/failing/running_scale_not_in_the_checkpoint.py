# causes: RESUME_STATE_MISSING
import io

import torch
from torch import nn

torch.manual_seed(0)


class DemandScale:
    """Slow running mean and spread of the demand, as the forecaster sees it."""

    def __init__(self):
        self.mean, self.spread = 0.0, 1.0

    def __call__(self, demand):
        self.mean += 0.02 * (demand.mean().item() - self.mean)
        self.spread += 0.02 * (demand.std().item() - self.spread)
        return (demand - self.mean) / self.spread


def start():
    forecaster = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    return forecaster, torch.optim.AdamW(forecaster.parameters(), 5e-3), DemandScale()


def week(forecaster, optimizer, scale, days):
    for _ in range(days):
        demand = 40 + 6 * torch.randn(32, 6)
        truth = (demand.mean(1, keepdim=True) - 40) / 6
        loss = (forecaster(scale(demand)) - truth).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


forecaster, optimizer, scale = start()
week(forecaster, optimizer, scale, 400)
file = io.BytesIO()
torch.save({"forecaster": forecaster.state_dict(), "optimizer": optimizer.state_dict()}, file)  # birth

file.seek(0)
forecaster, optimizer, scale = start()
stored = torch.load(file)  # birth
forecaster.load_state_dict(stored["forecaster"])
optimizer.load_state_dict(stored["optimizer"])
week(forecaster, optimizer, scale, 12)
