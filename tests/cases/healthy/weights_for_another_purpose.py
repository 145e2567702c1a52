import copy
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
file = Path(tempfile.mkdtemp()) / "base.pt"


def build(rate):
    net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    return net, torch.optim.Adam(net.parameters(), rate)


def train(net, opt, steps, task):
    for _ in range(steps):
        x = torch.randn(32, 6)
        loss = (net(x) - task(x)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def first_task(x):
    return x[:, :1]


def second_task(x):
    return 3 * x[:, 1:2] - 2


# Fine-tuning: weights only, a new optimizer, another task.
net, opt = build(1e-2)
train(net, opt, 120, first_task)
torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "epoch": 12}, file)
tuned, fresh = build(1e-2)
tuned.load_state_dict(torch.load(file)["net"])
train(tuned, fresh, 15, second_task)

# The same task with a lower rate and new moments goes on calmly.
calm, fresh = build(1e-4)
calm.load_state_dict(torch.load(file)["net"])
train(calm, fresh, 15, first_task)

# Each fold starts from the same file, and the task is another one with or without a load.
train(net, opt, 12, second_task)
folded, loaded = build(1e-2)
state = torch.load(file)
folded.load_state_dict(state["net"])
loaded.load_state_dict(state["opt"])
train(folded, loaded, 12, second_task)

# A script that goes back to its best weights and moments.
best = copy.deepcopy((folded.state_dict(), loaded.state_dict()))
train(folded, loaded, 10, first_task)
folded.load_state_dict(best[0])
loaded.load_state_dict(best[1])
train(folded, loaded, 10, second_task)

# Everything restored, in a new object.
torch.save({"net": folded.state_dict(), "opt": loaded.state_dict()}, file)
whole, moments = build(1e-2)
state = torch.load(file)
whole.load_state_dict(state["net"])
moments.load_state_dict(state["opt"])
train(whole, moments, 15, second_task)
