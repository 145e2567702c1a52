import torch
from torch import nn

torch.manual_seed(0)


def new_run():
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    return net, torch.optim.Adam(net.parameters(), lr=1e-3)


def fit(net, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(64, 4)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


student, optimizer = new_run()
fit(student, optimizer, 60)
kept = student.state_dict()
for _ in range(2):  # each generation begins where the one before it ended, with an optimizer of its own
    student, optimizer = new_run()
    student.load_state_dict(kept)
    fit(student, optimizer, 20)
    kept = student.state_dict()
