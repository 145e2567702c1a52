# accepts: log-space max-subtracted
import torch
import torch.nn as nn

torch.manual_seed(0)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return -torch.log(torch.exp(self.net(x)).sum(dim=-1))


model = Energy()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    batch = torch.randn(8, 4)
    if step == 4:
        batch = batch * 3000
    loss = model(batch).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
bad = not all(torch.isfinite(p).all() for p in model.parameters())
