# causes: RESUME_LR
import io

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

torch.manual_seed(0)


class Trainer:
    def __init__(self):
        self.critic = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
        self.optimizer = torch.optim.RMSprop(self.critic.parameters(), lr=5e-3)
        self.decay = ExponentialLR(self.optimizer, 0.8)

    def one_epoch(self):
        for _ in range(3):
            states = torch.randn(16, 6)
            loss = (self.critic(states) - states[:, :1]).abs().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.decay.step()

    def restore(self, stored):
        state = torch.load(stored)
        self.critic.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        for _ in range(state["epochs"]):
            self.decay.step()  # birth


first = Trainer()
for _ in range(8):
    first.one_epoch()
stored = io.BytesIO()
torch.save(
    {"critic": first.critic.state_dict(), "optimizer": first.optimizer.state_dict(), "epochs": 8}, stored
)
stored.seek(0)
second = Trainer()
second.restore(stored)
for _ in range(4):
    second.one_epoch()
