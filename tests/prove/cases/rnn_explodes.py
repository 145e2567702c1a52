# accepts: clip measured-rate lower-rate growth bounded
import torch
from torch import nn

torch.manual_seed(0)


class Cell(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.inp = nn.Linear(3, hidden)
        self.rec = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, seq):
        h = torch.zeros(seq.size(0), 24)
        for t in range(seq.size(1)):
            h = torch.relu(self.inp(seq[:, t]) + self.rec(h))
        return self.out(h)


net = Cell()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
bad = False
for step in range(80):
    seq = torch.randn(16, 60, 3)
    target = seq.sum((1, 2)).unsqueeze(1)
    loss = nn.functional.mse_loss(net(seq), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    bad = bad or not torch.isfinite(loss).item()
